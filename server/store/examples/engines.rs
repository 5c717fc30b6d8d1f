//! What a write costs in the embedded engine, and what it would cost on `redb` and on `fjall`.
//!
//!     cargo run --release -p ferry-store --features compare --example engines [DIR [WRITES [WRITERS]]]
//!
//! Each engine runs in a process of its own: writers create keys of about 3 KB and wait for each
//! to be durable; a thread gathers what waits and commits it as one. Then everything is put once
//! more, the process is killed, and another one measures how long opening takes. The two
//! databases do only this, keyed by revision, as etcd keys its own: an index of keys, comparing,
//! and watches would come on top. The embedded engine does all of it, with 64 watches.
//!
//! CPU per write and the ratios count; wall time on a shared machine says little.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ferry_store::embedded::Config;
use ferry_store::{Embedded, Operation, Range, Revision, Store, Txn};
use futures::StreamExt;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

const ENGINES: [&str; 4] = ["embedded", "redb", "redb-quick-repair", "fjall"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["write", engine, directory, writes, writers] => {
            write(engine, Path::new(directory), number(writes), number(writers));
        }
        ["open", engine, directory] => open(engine, Path::new(directory)),
        _ => {
            let directory = arguments.first().map_or_else(std::env::temp_dir, PathBuf::from);
            let writes = arguments.get(1).map_or(5_000, |text| number(text));
            let writers = arguments.get(2).map_or(16, |text| number(text));
            compare(&directory, writes, writers);
        }
    }
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

fn compare(directory: &Path, writes: usize, writers: usize) {
    println!("{writes} keys of 3 KB, put twice, {writers} writers");
    for engine in ENGINES {
        let directory = directory.join(format!("ferry-engines-{}-{engine}", std::process::id()));
        let this = std::env::current_exe().expect("the path of this program");
        let mut child = Command::new(&this)
            .args(["write", engine])
            .arg(&directory)
            .args([writes.to_string(), writers.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the writing process");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("figures");
        child.kill().expect("kill -9");
        child.wait().expect("the end of the writing process");
        let size = size_of(&directory);
        let opened =
            Command::new(&this).args(["open", engine]).arg(&directory).output().expect("the opening process");
        let opened = String::from_utf8_lossy(&opened.stdout);
        println!("{engine:18} {}  disk {:4} MB  {}", line.trim(), size >> 20, opened.trim());
        std::fs::remove_dir_all(&directory).expect("remove what was written");
    }
}

fn size_of(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut size = 0;
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let metadata = entry.metadata().expect("its metadata");
        size += if metadata.is_dir() { size_of(&entry.path()) } else { metadata.blocks() * 512 };
    }
    size
}

fn write(engine: &str, directory: &Path, writes: usize, writers: usize) {
    std::fs::create_dir_all(directory).expect("a directory");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let sink: Arc<dyn Sink> = match engine {
        "embedded" => Arc::new(runtime.block_on(Ours::open(directory))),
        "redb" => Arc::new(Gathered::new(Redb::open(directory, false))),
        "redb-quick-repair" => Arc::new(Gathered::new(Redb::open(directory, true))),
        "fjall" => Arc::new(Gathered::new(Fjall::open(directory))),
        other => panic!("no engine {other}"),
    };
    let mut figures = String::new();
    for (what, round) in [("create", 0), ("update", 1)] {
        let (cpu, wall) = runtime.block_on(run(&sink, round, writes, writers));
        let each = cpu.as_secs_f64() * 1e6 / writes as f64;
        let rate = writes as f64 / wall.as_secs_f64();
        figures += &format!("{what} {each:6.1} us CPU {rate:6.0}/s  ");
    }
    println!("{figures}RSS {:4.0} MB", memory());
    // Until it is killed.
    std::io::Read::read(&mut std::io::stdin(), &mut [0]).ok();
}

/// Returns the CPU time and the wall time it took.
async fn run(sink: &Arc<dyn Sink>, round: usize, writes: usize, writers: usize) -> (Duration, Duration) {
    let next = Arc::new(AtomicU64::new(0));
    let values: Arc<[Bytes]> = (0..64).map(|at| value(at, round)).collect();
    let cpu = cpu();
    let wall = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|_| {
            let (sink, next, values) = (sink.clone(), next.clone(), values.clone());
            tokio::spawn(async move {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed) as usize;
                    if at >= writes {
                        return;
                    }
                    let key = format!("/registry/pods/namespace-{}/pod-{at:08}", at % 16);
                    sink.put(key, values[at % values.len()].clone()).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a writer");
    }
    (self::cpu() - cpu, wall.elapsed())
}

/// About 3 KB that compresses about as well as a pod does.
fn value(at: usize, round: usize) -> Bytes {
    let mut value = Vec::with_capacity(3100);
    let mut random = (at * 31 + round) as u64;
    while value.len() < 3000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        value.extend_from_slice(
            format!("{{\"name\":\"container-{:x}\",\"resources\":{{}}}},", random >> 32).as_bytes(),
        );
    }
    value.into()
}

fn open(engine: &str, directory: &Path) {
    let started = Instant::now();
    let keys = match engine {
        "embedded" => {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            let store = Embedded::open(Config::new(directory)).expect("a store");
            let opened = started.elapsed();
            let page = runtime.block_on(store.range(Range::prefix("/registry/")));
            let keys = page.expect("a list").kvs.len();
            println!(
                "open after kill {:5.1} ms, list {keys} {:5.1} ms, RSS {:4.0} MB",
                opened.as_secs_f64() * 1e3,
                (started.elapsed() - opened).as_secs_f64() * 1e3,
                memory()
            );
            return;
        }
        // An index of keys has to be made of every key in the database.
        "redb" | "redb-quick-repair" => Redb::open(directory, false).keys(),
        "fjall" => Fjall::open(directory).keys(),
        other => panic!("no engine {other}"),
    };
    println!(
        "open after kill {:5.1} ms, with all {keys} revisions, RSS {:4.0} MB",
        started.elapsed().as_secs_f64() * 1e3,
        memory()
    );
}

#[async_trait::async_trait]
trait Sink: Send + Sync {
    async fn put(&self, key: String, value: Bytes);
}

struct Ours(Embedded);

impl Ours {
    async fn open(directory: &Path) -> Self {
        let store = Embedded::open(Config::new(directory)).expect("a store");
        for kind in 0..64 {
            let prefix = if kind == 0 { "/registry/pods/".into() } else { format!("/registry/kind-{kind}/") };
            let mut watch = store.watch(&prefix, Revision(2)).await.expect("a watch");
            tokio::spawn(async move { while watch.next().await.is_some() {} });
        }
        Ours(store)
    }
}

#[async_trait::async_trait]
impl Sink for Ours {
    async fn put(&self, key: String, value: Bytes) {
        let txn =
            Txn { operations: vec![Operation::Put { key: key.into(), value, ttl: None }], ..Txn::default() };
        self.0.commit(txn).await.expect("a commit");
    }
}

/// A database that takes a batch and makes it durable.
trait Database: Send + 'static {
    fn commit(&mut self, batch: &[(Vec<u8>, Bytes)]);
}

type Waiting = (String, Bytes, oneshot::Sender<()>);

/// Gathers as the embedded engine does, in front of a database.
struct Gathered {
    queue: Arc<(Mutex<Vec<Waiting>>, Condvar)>,
}

impl Gathered {
    fn new(mut database: impl Database) -> Self {
        let queue: Arc<(Mutex<Vec<Waiting>>, Condvar)> = Arc::default();
        let waiting = queue.clone();
        std::thread::spawn(move || {
            let mut revision = 1u64;
            loop {
                let taken = {
                    let mut queue = waiting.0.lock();
                    waiting.1.wait_while(&mut queue, |queue| queue.is_empty());
                    std::mem::take(&mut *queue)
                };
                let mut answers = Vec::with_capacity(taken.len());
                let mut batch = Vec::with_capacity(taken.len());
                for (key, value, answer) in taken {
                    revision += 1;
                    let mut keyed = revision.to_be_bytes().to_vec();
                    keyed.extend_from_slice(key.as_bytes());
                    batch.push((keyed, value));
                    answers.push(answer);
                }
                database.commit(&batch);
                for answer in answers {
                    answer.send(()).ok();
                }
            }
        });
        Gathered { queue }
    }
}

#[async_trait::async_trait]
impl Sink for Gathered {
    async fn put(&self, key: String, value: Bytes) {
        let (answer, done) = oneshot::channel();
        {
            let mut queue = self.queue.0.lock();
            queue.push((key, value, answer));
            self.queue.1.notify_one();
        }
        done.await.expect("a commit");
    }
}

const TABLE: redb::TableDefinition<&[u8], &[u8]> = redb::TableDefinition::new("revisions");

struct Redb {
    database: redb::Database,
    quick_repair: bool,
}

impl Redb {
    fn open(directory: &Path, quick_repair: bool) -> Self {
        let database = redb::Database::builder()
            .set_cache_size(16 << 20)
            .create(directory.join("redb"))
            .expect("a redb");
        Redb { database, quick_repair }
    }

    fn keys(&self) -> usize {
        use redb::{ReadableDatabase, ReadableTable};
        let read = self.database.begin_read().expect("a read");
        let table = read.open_table(TABLE).expect("a table");
        table.iter().expect("entries").filter(|entry| entry.is_ok()).count()
    }
}

impl Database for Redb {
    fn commit(&mut self, batch: &[(Vec<u8>, Bytes)]) {
        let mut write = self.database.begin_write().expect("a transaction");
        write.set_quick_repair(self.quick_repair);
        {
            let mut table = write.open_table(TABLE).expect("a table");
            for (key, value) in batch {
                table.insert(key.as_slice(), &**value).expect("an insert");
            }
        }
        write.commit().expect("a commit");
    }
}

struct Fjall {
    database: fjall::Database,
    keyspace: fjall::Keyspace,
}

impl Fjall {
    fn open(directory: &Path) -> Self {
        let database =
            fjall::Database::builder(directory.join("fjall")).cache_size(16 << 20).open().expect("a fjall");
        let keyspace = database
            .keyspace("revisions", || fjall::KeyspaceCreateOptions::default().max_memtable_size(16 << 20))
            .expect("a keyspace");
        Fjall { database, keyspace }
    }

    fn keys(&self) -> usize {
        self.keyspace.iter().filter_map(|entry| entry.key().ok()).count()
    }
}

impl Database for Fjall {
    fn commit(&mut self, batch: &[(Vec<u8>, Bytes)]) {
        let mut write = self.database.batch().durability(Some(fjall::PersistMode::SyncData));
        for (key, value) in batch {
            write.insert(&self.keyspace, key.as_slice(), &**value);
        }
        write.commit().expect("a commit");
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Resident memory of this process that is its own, in MB.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)).expect("a size");
    number(kilobytes) as f64 / 1024.0
}
