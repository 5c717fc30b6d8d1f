//! The log of the store. The first byte chooses: either the bytes are a segment as they are, or they say which records a
//! segment is built of and how it is damaged. Whatever is found in a damaged segment was written there.

use ferry_store::Revision;
use ferry_store::embedded::frame::{
    self, Frame, FrameBuilder, Mark, Next, Record, SEGMENT_HEADER, parse_frame, parse_record,
};

const SALT: u64 = 0x0123_4567_89ab_cdef;

pub fn run(data: &[u8]) {
    match data.split_first() {
        Some((0, bytes)) => raw(bytes),
        Some((_, bytes)) => damaged(bytes),
        None => {}
    }
}

fn raw(bytes: &[u8]) {
    let salt = frame::parse_segment_header(bytes, 1).ok().flatten().unwrap_or(SALT);
    frames(bytes, salt, |_| ());
    let _ = parse_record(bytes);
}

/// Calls `each` with the frames of a segment until its end or a fault; the number of frames is bounded by the bytes.
fn frames<'a>(segment: &'a [u8], salt: u64, mut each: impl FnMut(Frame<'a>)) {
    let mut offset = SEGMENT_HEADER;
    while let Ok(Next::Frame(frame)) = parse_frame(segment, offset, salt) {
        assert!(frame.end > offset && frame.end <= segment.len());
        offset = frame.end;
        each(frame);
    }
}

fn damaged(bytes: &[u8]) {
    let mut take = bytes.iter().copied();
    let mut next = || take.next().unwrap_or(0);
    let mut segment = frame::segment_header(1, SALT).to_vec();
    let mut written = Vec::new();
    let mut builder = FrameBuilder::default();
    for sequence in 0..u32::from(next() % 8) {
        builder.begin();
        let mut records = Vec::new();
        for sub in 0..u32::from(next() % 4) {
            let key = "k".repeat(usize::from(next()));
            let value = vec![next(); usize::from(next()) * 3];
            records.push((key, value, sub));
        }
        for (key, value, sub) in &records {
            builder.push(&Record {
                key,
                value,
                sub: *sub,
                revision: Revision(i64::from(sequence) + 1),
                created: Revision(1),
                version: 1,
                ttl: None,
                lease: i64::from(*sub % 2),
            });
        }
        let durable = segment.len() as u32;
        let mark = Mark { revision: Revision(i64::from(sequence) + 1), durable, sequence, ..Mark::default() };
        let at = segment.len();
        segment.extend_from_slice(builder.finish(SALT, mark));
        written.push((at, records));
    }
    // Space that was taken and never written to.
    segment.resize(segment.len() + usize::from(next()) * 8, 0);
    for _ in 0..next() % 8 {
        let at = usize::from(next()) << 8 | usize::from(next());
        let length = segment.len();
        segment[at % length] ^= next();
    }
    segment.truncate(segment.len() - usize::from(next()).min(segment.len()));
    let mut found = 0;
    frames(&segment, SALT, |frame| {
        let (_, records) = &written[found];
        assert_eq!(frame.records.len(), records.len());
        for ((_, _, record), (key, value, sub)) in frame.records.iter().zip(records) {
            assert_eq!((record.key, record.value, record.sub), (key.as_str(), value.as_slice(), *sub));
        }
        found += 1;
    });
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut builder = FrameBuilder::default();
    builder.begin();
    let record = Record {
        key: "/registry/pods/default/a",
        value: b"some bytes",
        revision: Revision(2),
        created: Revision(1),
        version: 2,
        sub: 0,
        ttl: Some(std::time::Duration::from_secs(1)),
        lease: 0,
    };
    builder.push(&record);
    builder.push(&Record { lease: 7, ttl: None, ..record });
    let mark = Mark { revision: Revision(2), sequence: 1, ..Mark::default() };
    let frame = builder.finish(SALT, mark).to_vec();
    let header = frame::segment_header(1, SALT);
    vec![
        [&[0][..], &header, &frame, &frame].concat(),
        [&[0][..], &header, &frame, &[0; 64]].concat(),
        (1..=200).collect(),
        vec![1, 3, 2, 5, 6, 7, 8, 9, 1, 20, 30, 40, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 2, 0, 70, 255, 1, 2, 3],
    ]
}
