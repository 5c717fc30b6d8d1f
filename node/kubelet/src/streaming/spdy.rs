//! SPDY/3.1 as Kubernetes uses it: many streams over one upgraded connection.
//! containerd serves exec, attach and port-forward this way, and older
//! clients ask for it.
//!
//! There is no flow control in Kubernetes' use of the protocol; the socket's
//! own is what slows a sender down. Frames are as in the SPDY draft 3.1:
//!
//! ```text
//! control: |1| version 3 (15) | type (16) | flags (8) | length (24) | …
//! data:    |0| stream id (31)             | flags (8) | length (24) | …
//! ```

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::LazyLock;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

const VERSION: u16 = 3;
const FIN: u8 = 1;
/// Larger frames are legal; nobody sends them, and a length field is not a
/// reason to allocate.
const MAX_FRAME: usize = 1 << 20;
const MAX_HEADERS: usize = 64 << 10;
const DATA_CHUNK: usize = 32 << 10;

mod kind {
    pub const SYN_STREAM: u16 = 1;
    pub const SYN_REPLY: u16 = 2;
    pub const RST_STREAM: u16 = 3;
    pub const PING: u16 = 6;
    pub const GOAWAY: u16 = 7;
}

pub type Headers = Vec<(String, String)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens odd streams.
    Client,
    /// Opens even streams.
    Server,
}

/// One connection. Dropping it and all its streams closes the connection.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

struct Shared {
    out: mpsc::Sender<Frame>,
    streams: Mutex<Streams>,
}

struct Streams {
    next_id: u32,
    /// Where what comes in for a stream goes.
    inbound: HashMap<u32, mpsc::Sender<Bytes>>,
}

/// One stream of a session: bytes both ways, each way closed by itself.
pub struct Stream {
    pub headers: Headers,
    pub reader: Reader,
    pub writer: Writer,
}

pub struct Reader {
    inbound: mpsc::Receiver<Bytes>,
}

pub struct Writer {
    id: u32,
    out: mpsc::Sender<Frame>,
    is_open: bool,
}

enum Frame {
    Open { id: u32, headers: Headers },
    Reply { id: u32 },
    Data { id: u32, data: Bytes, last: bool },
    Reset { id: u32 },
    Ping { id: u32 },
}

impl Session {
    /// Takes over a connection. Streams the other side opens come out of the
    /// channel.
    pub fn start<S>(connection: S, role: Role) -> (Self, mpsc::Receiver<Stream>)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (out, frames) = mpsc::channel(16);
        let (opened, incoming) = mpsc::channel(16);
        let next_id = if role == Role::Client { 1 } else { 2 };
        let streams = Mutex::new(Streams { next_id, inbound: HashMap::new() });
        let shared = Arc::new(Shared { out, streams });
        let (read_half, write_half) = tokio::io::split(connection);
        let writer = tokio::spawn(write_frames(write_half, frames));
        let weak = Arc::downgrade(&shared);
        tokio::spawn(async move {
            let ended = read_frames(read_half, &weak, opened).await;
            if let Err(error) = ended {
                tracing::debug!(%error, "SPDY connection ended");
            }
            if let Some(shared) = weak.upgrade() {
                // readers see the end
                shared.streams.lock().inbound.clear();
            }
            writer.abort();
        });
        (Self { shared }, incoming)
    }

    pub async fn open(&self, headers: Headers) -> io::Result<Stream> {
        let (sender, inbound) = mpsc::channel(16);
        let id = {
            let mut streams = self.shared.streams.lock();
            let id = streams.next_id;
            streams.next_id += 2;
            streams.inbound.insert(id, sender);
            id
        };
        self.shared.out.send(Frame::Open { id, headers: headers.clone() }).await.map_err(|_| closed())?;
        let writer = Writer { id, out: self.shared.out.clone(), is_open: true };
        Ok(Stream { headers, reader: Reader { inbound }, writer })
    }
}

impl Stream {
    /// A header, by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

impl Reader {
    /// The next bytes; `None` when the other side is done.
    pub async fn read(&mut self) -> Option<Bytes> {
        self.inbound.recv().await
    }

    /// Everything until the other side is done.
    pub async fn read_to_end(&mut self, limit: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(bytes) = self.read().await {
            all.extend_from_slice(&bytes[..bytes.len().min(limit - all.len())]);
        }
        all
    }
}

impl Writer {
    pub async fn write(&mut self, mut data: Bytes) -> io::Result<()> {
        while !data.is_empty() {
            let part = data.split_to(data.len().min(DATA_CHUNK));
            self.out
                .send(Frame::Data { id: self.id, data: part, last: false })
                .await
                .map_err(|_| closed())?;
        }
        Ok(())
    }

    /// Says that no more comes. The other way stays open.
    pub async fn close(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_open) {
            self.out
                .send(Frame::Data { id: self.id, data: Bytes::new(), last: true })
                .await
                .map_err(|_| closed())?;
        }
        Ok(())
    }

    /// Ends the stream both ways at once.
    pub async fn reset(&mut self) -> io::Result<()> {
        self.is_open = false;
        self.out.send(Frame::Reset { id: self.id }).await.map_err(|_| closed())
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the SPDY connection is closed")
}

async fn write_frames<W: AsyncWrite>(connection: tokio::io::WriteHalf<W>, mut frames: mpsc::Receiver<Frame>) {
    let mut connection = connection;
    let mut headers = HeaderWriter::new();
    while let Some(frame) = frames.recv().await {
        let encoded = match encode(frame, &mut headers) {
            Ok(encoded) => encoded,
            Err(error) => {
                tracing::debug!(%error, "SPDY frame not encoded");
                return;
            }
        };
        if connection.write_all(&encoded).await.is_err() {
            return;
        }
        if frames.is_empty() && connection.flush().await.is_err() {
            return;
        }
    }
    // the session was dropped; a failed shutdown means the other side was faster
    let _ = connection.shutdown().await;
}

fn encode(frame: Frame, headers: &mut HeaderWriter) -> io::Result<Bytes> {
    let mut bytes = BytesMut::new();
    match frame {
        Frame::Open { id, headers: list } => {
            let block = headers.compress(&list)?;
            control(&mut bytes, kind::SYN_STREAM, 0, 10 + block.len());
            bytes.put_u32(id);
            bytes.put_u32(0);
            bytes.put_u16(0);
            bytes.put_slice(&block);
        }
        Frame::Reply { id } => {
            let block = headers.compress(&[])?;
            control(&mut bytes, kind::SYN_REPLY, 0, 4 + block.len());
            bytes.put_u32(id);
            bytes.put_slice(&block);
        }
        Frame::Data { id, data, last } => {
            bytes.put_u32(id);
            bytes.put_u32(u32::from(if last { FIN } else { 0 }) << 24 | data.len() as u32);
            bytes.put_slice(&data);
        }
        Frame::Reset { id } => {
            control(&mut bytes, kind::RST_STREAM, 0, 8);
            bytes.put_u32(id);
            bytes.put_u32(5); // CANCEL
        }
        Frame::Ping { id } => {
            control(&mut bytes, kind::PING, 0, 4);
            bytes.put_u32(id);
        }
    }
    Ok(bytes.freeze())
}

fn control(bytes: &mut BytesMut, kind: u16, flags: u8, length: usize) {
    bytes.put_u16(0x8000 | VERSION);
    bytes.put_u16(kind);
    bytes.put_u32(u32::from(flags) << 24 | length as u32);
}

async fn read_frames<R: AsyncRead>(
    connection: tokio::io::ReadHalf<R>,
    shared: &std::sync::Weak<Shared>,
    opened: mpsc::Sender<Stream>,
) -> io::Result<()> {
    let mut connection = connection;
    let mut headers = HeaderReader::new();
    loop {
        let first = match connection.read_u32().await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            first => first?,
        };
        let second = connection.read_u32().await?;
        let (flags, length) = ((second >> 24) as u8, (second & 0xff_ffff) as usize);
        if length > MAX_FRAME {
            return Err(invalid("a frame is too large"));
        }
        let mut payload = vec![0; length];
        connection.read_exact(&mut payload).await?;
        let payload = Bytes::from(payload);
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        if first & 0x8000_0000 == 0 {
            deliver(&shared, first, payload, flags & FIN != 0).await;
            continue;
        }
        if (first >> 16) as u16 & 0x7fff != VERSION {
            return Err(invalid("not SPDY/3"));
        }
        if !take_control(&shared, first as u16, flags, payload, &mut headers, &opened).await? {
            return Ok(());
        }
    }
}

async fn deliver(shared: &Shared, id: u32, data: Bytes, last: bool) {
    let sender = {
        let mut streams = shared.streams.lock();
        if last { streams.inbound.remove(&id) } else { streams.inbound.get(&id).cloned() }
    };
    // nobody reads a stream that was dropped: its bytes are dropped too
    if let Some(sender) = sender.filter(|_| !data.is_empty()) {
        let _ = sender.send(data).await;
    }
}

/// `false` when the other side says goodbye.
async fn take_control(
    shared: &Shared,
    kind: u16,
    flags: u8,
    mut payload: Bytes,
    headers: &mut HeaderReader,
    opened: &mpsc::Sender<Stream>,
) -> io::Result<bool> {
    let need = |payload: &Bytes, count: usize| {
        if payload.len() < count { Err(invalid("a frame is too short")) } else { Ok(()) }
    };
    match kind {
        kind::SYN_STREAM => {
            need(&payload, 10)?;
            let id = payload.get_u32() & 0x7fff_ffff;
            payload.advance(6);
            let list = headers.decompress(&payload)?;
            let (sender, inbound) = mpsc::channel(16);
            if flags & FIN == 0 {
                shared.streams.lock().inbound.insert(id, sender);
            }
            shared.out.send(Frame::Reply { id }).await.map_err(|_| closed())?;
            let writer = Writer { id, out: shared.out.clone(), is_open: true };
            let stream = Stream { headers: list, reader: Reader { inbound }, writer };
            return Ok(opened.send(stream).await.is_ok());
        }
        kind::SYN_REPLY => {
            need(&payload, 4)?;
            let id = payload.get_u32() & 0x7fff_ffff;
            // the block must go through the decompressor: later ones depend on it
            headers.decompress(&payload)?;
            if flags & FIN != 0 {
                shared.streams.lock().inbound.remove(&id);
            }
        }
        kind::RST_STREAM => {
            need(&payload, 8)?;
            let id = payload.get_u32() & 0x7fff_ffff;
            shared.streams.lock().inbound.remove(&id);
        }
        kind::PING => {
            need(&payload, 4)?;
            shared.out.send(Frame::Ping { id: payload.get_u32() }).await.map_err(|_| closed())?;
        }
        kind::GOAWAY => return Ok(false),
        // settings, window updates, further headers: nothing we use
        8 => {
            need(&payload, 4)?;
            payload.advance(4);
            headers.decompress(&payload)?;
        }
        _ => {}
    }
    Ok(true)
}

fn invalid(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// The words headers are compressed against, from the SPDY draft: common
/// names first, each after its length, then common values.
static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language \
        accept-ranges age allow authorization cache-control connection content-base content-encoding content-language \
        content-length content-location content-md5 content-range content-type date etag expect expires from host \
        if-match if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards \
        pragma proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding \
        upgrade user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public \
        set-cookie keep-alive origin";
    const VALUES: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
        203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized\
        403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
        Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
        chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,\
        text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
    let mut dictionary = Vec::new();
    for word in WORDS.split_whitespace() {
        let word = word.replace('_', " ");
        dictionary.extend((word.len() as u32).to_be_bytes());
        dictionary.extend(word.as_bytes());
    }
    dictionary.extend(VALUES.as_bytes());
    dictionary
});

/// One compressed stream for all headers of a direction.
struct HeaderWriter {
    zlib: Compress,
    is_fresh: bool,
}

impl HeaderWriter {
    fn new() -> Self {
        Self { zlib: Compress::new(Compression::default(), true), is_fresh: true }
    }

    fn compress(&mut self, headers: &[(String, String)]) -> io::Result<Vec<u8>> {
        if std::mem::take(&mut self.is_fresh) {
            self.zlib.set_dictionary(&DICTIONARY).map_err(io::Error::other)?;
        }
        let mut plain = BytesMut::new();
        plain.put_u32(headers.len() as u32);
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            plain.put_u32(name.len() as u32);
            plain.put_slice(name.as_bytes());
            plain.put_u32(value.len() as u32);
            plain.put_slice(value.as_bytes());
        }
        let mut block = Vec::with_capacity(plain.len() + 64);
        let before = self.zlib.total_in();
        loop {
            let done = (self.zlib.total_in() - before) as usize;
            block.reserve(256);
            self.zlib
                .compress_vec(&plain[done..], &mut block, FlushCompress::Sync)
                .map_err(io::Error::other)?;
            // room left over means that all was flushed
            if (self.zlib.total_in() - before) as usize == plain.len() && block.len() < block.capacity() {
                return Ok(block);
            }
        }
    }
}

struct HeaderReader {
    zlib: Decompress,
}

impl HeaderReader {
    fn new() -> Self {
        Self { zlib: Decompress::new(true) }
    }

    fn decompress(&mut self, block: &[u8]) -> io::Result<Headers> {
        let mut plain = Vec::with_capacity(1024);
        let before = self.zlib.total_in();
        loop {
            let done = (self.zlib.total_in() - before) as usize;
            plain.reserve(1024);
            let length = plain.len();
            match self.zlib.decompress_vec(&block[done..], &mut plain, FlushDecompress::Sync) {
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    self.zlib.set_dictionary(&DICTIONARY).map_err(io::Error::other)?;
                    continue;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
            if plain.len() > MAX_HEADERS {
                return Err(invalid("headers are too large"));
            }
            let done_now = (self.zlib.total_in() - before) as usize;
            if done_now == block.len() && plain.len() < plain.capacity()
                || plain.len() == length && done_now == done
            {
                break;
            }
        }
        parse_headers(&plain)
    }
}

fn parse_headers(mut plain: &[u8]) -> io::Result<Headers> {
    fn text(plain: &mut &[u8]) -> io::Result<String> {
        if plain.len() < 4 {
            return Err(invalid("headers are cut off"));
        }
        let length = plain.get_u32() as usize;
        if plain.len() < length {
            return Err(invalid("headers are cut off"));
        }
        let (text, rest) = plain.split_at(length);
        *plain = rest;
        String::from_utf8(text.to_vec()).map_err(|_| invalid("headers are not text"))
    }
    if plain.len() < 4 {
        return Err(invalid("headers are cut off"));
    }
    let count = plain.get_u32();
    let mut headers = Vec::new();
    for _ in 0..count {
        headers.push((text(&mut plain)?, text(&mut plain)?));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_is_the_drafts() {
        assert_eq!(DICTIONARY.len(), 1423);
        assert!(DICTIONARY.starts_with(b"\0\0\0\x07options\0\0\0\x04head"));
        assert!(DICTIONARY.ends_with(b"enq=0."));
    }

    #[tokio::test]
    async fn streams_carry_headers_and_bytes_both_ways_and_half_close() {
        let (near, far) = tokio::io::duplex(4096);
        let (client, _) = Session::start(near, Role::Client);
        let (_server, mut incoming) = Session::start(far, Role::Server);
        let big = Bytes::from(vec![7u8; 200_000]);
        for number in 0..3 {
            let headers =
                vec![("streamType".to_string(), "stdin".to_string()), ("n".to_string(), number.to_string())];
            let mut ours = client.open(headers).await.expect("the session is open");
            let mut theirs = incoming.recv().await.expect("it arrives");
            assert_eq!(theirs.header("streamtype"), Some("stdin"));
            assert_eq!(theirs.header("n"), Some(number.to_string().as_str()));
            let sent = big.clone();
            let sending = tokio::spawn(async move {
                ours.writer.write(sent).await.expect("it can be written");
                ours.writer.close().await.expect("it can be closed");
                ours.reader.read_to_end(1 << 20).await
            });
            let received = theirs.reader.read_to_end(1 << 20).await;
            assert_eq!(received.len(), big.len());
            theirs
                .writer
                .write(Bytes::from_static(b"after the end of input"))
                .await
                .expect("the other way is open");
            theirs.writer.close().await.expect("it can be closed");
            assert_eq!(sending.await.expect("it ends"), b"after the end of input");
        }
    }

    #[tokio::test]
    async fn a_lost_connection_ends_every_stream() {
        let (near, far) = tokio::io::duplex(4096);
        let (client, _) = Session::start(near, Role::Client);
        let mut stream = client.open(vec![]).await.expect("the session is open");
        drop(far);
        assert_eq!(stream.reader.read().await, None);
    }

    #[tokio::test]
    async fn noise_ends_the_session_without_harm() {
        for noise in [
            vec![0xff; 64],
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            vec![0x80, 3, 0, 1, 0, 0, 0, 2, 0, 0],
        ] {
            let (near, mut far) = tokio::io::duplex(4096);
            let (_client, mut incoming) = Session::start(near, Role::Server);
            far.write_all(&noise).await.expect("memory takes it");
            drop(far);
            assert!(incoming.recv().await.is_none());
        }
    }
}
