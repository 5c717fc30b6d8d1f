//! The frames of a SPDY connection, as a client of exec or containerd sends them.

use std::io::Cursor;
use std::sync::LazyLock;

use ferry_kubelet::streaming::spdy::{Role, Session};
use tokio::io::AsyncReadExt;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// What one stream's reader keeps.
const KEPT: usize = 1 << 20;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

pub fn run(data: &[u8]) {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(runtime);
    let bytes = Cursor::new(data.to_vec());
    RUNTIME.block_on(async move {
        let (session, mut incoming) = Session::start(tokio::io::join(bytes, tokio::io::sink()), Role::Server);
        let mut readers = JoinSet::new();
        while let Some(mut stream) = incoming.recv().await {
            readers.spawn(async move { stream.reader.read_to_end(KEPT).await });
        }
        drop(session);
        while readers.join_next().await.is_some() {}
    });
}

pub fn seeds() -> Vec<Vec<u8>> {
    runtime().block_on(async {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let (client, _incoming) = Session::start(near, Role::Client);
        for kind in ["error", "stdin", "stdout"] {
            let headers = vec![("streamtype".to_string(), kind.to_string()), ("port".into(), "80".into())];
            let mut stream = client.open(headers).await.expect("the session is open");
            stream.writer.write("some bytes".into()).await.expect("it can be written");
            stream.writer.close().await.expect("it can be closed");
        }
        let mut bytes = vec![0; 1 << 16];
        let mut length = 0;
        // Three streams, each of three frames: all of them are written before the reads find nothing more.
        while let Ok(Ok(read @ 1..)) =
            tokio::time::timeout(std::time::Duration::from_millis(200), far.read(&mut bytes[length..])).await
        {
            length += read;
        }
        bytes.truncate(length);
        let ping = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];
        let reset = [0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 5];
        let goodbye = [0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        vec![bytes.clone(), [&bytes[..], &ping, &reset, &goodbye].concat(), ping.to_vec()]
    })
}
