use super::*;
use crate::devices::Devices;
use crate::devices::registration;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferry_plugins_api::pluginregistration::registration_server::{Registration, RegistrationServer};
use ferry_plugins_api::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

#[test]
fn sockets_that_come_and_go_are_asked_and_forgotten() {
    let now = Instant::now();
    let path = |name: &str| PathBuf::from(name);
    let made = |inode| SocketIdentity { inode, seconds: 0, nanoseconds: 0 };
    let registered =
        || State::Registered(Registered { kind: "k".into(), name: "d".into(), endpoint: "e".into() });
    let refused = |until| State::Refused { until, delay: FIRST_RETRY };
    let known: BTreeMap<_, _> = [
        (path("gone"), Known { made: made(1), state: registered() }),
        (path("made-again"), Known { made: made(2), state: registered() }),
        (path("same"), Known { made: made(3), state: registered() }),
        (path("asked"), Known { made: made(4), state: State::Asked }),
        (path("waits"), Known { made: made(5), state: refused(now + FIRST_RETRY) }),
        (path("due"), Known { made: made(6), state: refused(now) }),
    ]
    .into();
    let found: BTreeMap<_, _> =
        [("made-again", 9), ("same", 3), ("asked", 4), ("waits", 5), ("due", 6), ("new", 7)]
            .map(|(name, inode)| (path(name), made(inode)))
            .into();
    let expected = [
        Step::Forget(path("gone")),
        Step::Forget(path("made-again")),
        Step::Ask(path("due"), made(6)),
        Step::Ask(path("made-again"), made(9)),
        Step::Ask(path("new"), made(7)),
    ];
    assert_eq!(decide(&found, &known, now), expected);
}

/// A plugin that says who it is, and hears what became of it. It fails the first calls.
struct Played {
    info: PluginInfo,
    failures: AtomicUsize,
    told: mpsc::Sender<RegistrationStatus>,
}

#[tonic::async_trait]
impl Registration for Played {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let left = self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(_) => Err(Status::unavailable("not yet")),
            Err(_) => Ok(Response::new(self.info.clone())),
        }
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let _ = self.told.send(status.into_inner()).await;
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Plays plugins for a kubelet whose directory this is.
struct Stage {
    directory: tempfile::TempDir,
    devices: Arc<Devices>,
    looked: CancellationToken,
    stop: CancellationToken,
}

impl Stage {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let devices = Devices::new(None, directory.path(), Arc::new(|_: &_| {})).expect("nothing is there");
        let (looked, stop) = (CancellationToken::new(), CancellationToken::new());
        Self { directory, devices: Arc::new(devices), looked, stop }
    }

    fn start(&self) {
        let sockets = self.directory.path().join("plugins_registry");
        std::fs::create_dir_all(&sockets).expect("made");
        let drivers = Arc::new(registration::Registration(self.devices.clone()));
        let handlers = Handlers::from([(registration::TYPE, drivers as Arc<dyn Handler>)]);
        tokio::spawn(run(sockets, handlers, self.looked.clone(), self.stop.clone()));
    }

    fn socket(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join("plugins_registry").join(name);
        std::fs::create_dir_all(path.parent().expect("in a directory")).expect("made");
        path
    }

    /// A plugin at a socket, and what it is told.
    fn play(&self, socket: &str, kind: &str, name: &str, versions: &[&str], failures: usize) -> Heard {
        let (told, heard) = mpsc::channel(16);
        let info = PluginInfo {
            r#type: kind.into(),
            name: name.into(),
            endpoint: String::new(),
            supported_versions: versions.iter().map(ToString::to_string).collect(),
        };
        let listener = UnixListener::bind(self.socket(socket)).expect("a socket");
        let played = Played { info, failures: failures.into(), told };
        let server = tonic::transport::Server::builder()
            .add_service(RegistrationServer::new(played))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(server);
        Heard(heard)
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let mut changes = self.devices.drivers.changes();
        let waited = async {
            while !is_so() {
                changes.changed().await.expect("the drivers are there");
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waited)
            .await
            .unwrap_or_else(|_| panic!("never: {what}"));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Heard(mpsc::Receiver<RegistrationStatus>);

impl Heard {
    async fn next(&mut self) -> RegistrationStatus {
        let heard = tokio::time::timeout(Duration::from_secs(60), self.0.recv()).await;
        heard.expect("within a minute").expect("the plugin is played")
    }
}

#[tokio::test]
async fn a_plugin_is_registered_when_it_comes_goes_and_comes_again() {
    let stage = Stage::new();
    // there before the kubelet is, in a directory of its own, and late
    let mut first = stage.play("example/reg.sock", "DRAPlugin", "d.example.com", &["v1.DRAPlugin"], 1);
    stage.start();
    assert_eq!(first.next().await, RegistrationStatus { plugin_registered: true, error: String::new() });
    let drivers = &stage.devices.drivers;
    stage.until("it is registered", || drivers.is_registered("d.example.com")).await;
    stage.looked.cancelled().await;

    std::fs::remove_file(stage.socket("example/reg.sock")).expect("removed");
    stage.until("it is gone", || !drivers.is_registered("d.example.com")).await;
    let mut again = stage.play("example/reg.sock", "DRAPlugin", "d.example.com", &["v1beta1.DRAPlugin"], 0);
    assert!(again.next().await.plugin_registered);
    stage.until("it is back", || drivers.is_registered("d.example.com")).await;

    // made again at once: the kubelet may never have seen that it was gone
    std::fs::remove_file(stage.socket("example/reg.sock")).expect("removed");
    let mut third = stage.play("example/reg.sock", "DRAPlugin", "d.example.com", &["v1.DRAPlugin"], 0);
    assert!(third.next().await.plugin_registered);
}

#[tokio::test]
async fn a_plugin_that_is_not_taken_hears_why() {
    let stage = Stage::new();
    stage.start();
    let mut odd = stage.play("odd.sock", "OddPlugin", "odd.example.com", &["1.0.0"], 0);
    let told = odd.next().await;
    let words = "RegisterPlugin error -- no handler registered for plugin type: OddPlugin at socket ";
    assert!(!told.plugin_registered && told.error.starts_with(words), "{told:?}");
    let mut old = stage.play("old.sock", "DRAPlugin", "d.example.com", &["v1alpha3.Node"], 0);
    let told = old.next().await;
    let words =
        r#"none of services supported by the plugin (["v1alpha3.Node"]) are supported by the kubelet"#;
    assert!(!told.plugin_registered && told.error.contains(words), "{told:?}");
    let mut nameless = stage.play("nameless.sock", "DRAPlugin", "", &["v1.DRAPlugin"], 0);
    assert!(nameless.next().await.error.contains("DRA driver name is empty"));
    assert!(!stage.devices.drivers.is_registered("d.example.com"));
    // refused is not forgotten: it is asked again
    assert!(!odd.next().await.plugin_registered);
}

#[tokio::test]
async fn sockets_without_a_plugin_keep_nobody_waiting() {
    let stage = Stage::new();
    // one that nobody answers at, one that speaks something else, a file, one that is hidden
    let silent = UnixListener::bind(stage.socket("silent.sock")).expect("a socket");
    let garbage = UnixListener::bind(stage.socket("garbage.sock")).expect("a socket");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = garbage.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 what\r\n\r\n").await;
        }
    });
    std::fs::write(stage.socket("file.sock"), "").expect("written");
    let mut hidden = stage.play(".hidden.sock", "DRAPlugin", "h.example.com", &["v1.DRAPlugin"], 0);
    let mut good = stage.play("good.sock", "DRAPlugin", "d.example.com", &["v1.DRAPlugin"], 0);
    stage.start();
    assert!(good.next().await.plugin_registered);
    assert!(hidden.0.try_recv().is_err());
    drop(silent);
}
