//! Writes a file of bbolt, the database that etcd keeps its data in, so that etcd and `etcdctl snapshot restore` take a
//! snapshot of Ferry's. Nothing is ever read or changed here: keys come in order, each bucket is packed from the
//! first page to the last, and the tree above its leaves is built at the end.
//!
//! ```text
//! page     id 8 | flags 2 | count 2 | overflow 4 | elements | keys and values
//! leaf     flags 4 | position 4 | key size 4 | value size 4
//! branch   position 4 | key size 4 | page 8
//! meta     magic 4 | version 4 | page size 4 | flags 4 | root 8 | sequence 8 | free list 8 | pages 8 | txid 8 | FNV-1a of these 8
//! ```
//!
//! Pages 0 and 1 are the two metas, page 2 the (empty) free list. All numbers are little-endian.

use std::io::{self, Seek, SeekFrom, Write};

const PAGE: usize = 4096;
const PAGE_HEADER: usize = 16;
const ELEMENT: usize = 16;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREE_LIST: u16 = 0x10;
/// A leaf's value is the head of a bucket.
const BUCKET: u32 = 0x01;
const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const FREE_LIST_PAGE: u64 = 2;

pub struct Bolt<W> {
    out: W,
    /// Where the next page goes.
    next: u64,
    /// Finished buckets, by name: the root page of each.
    buckets: Vec<(String, u64)>,
}

/// An element of a page that is being filled.
struct Element {
    key: Vec<u8>,
    value: Vec<u8>,
    flags: u32,
    /// In a branch, the page that begins with this key.
    page: u64,
}

impl<W: Write + Seek> Bolt<W> {
    pub fn new(mut out: W) -> io::Result<Self> {
        // The metas are known last; their place is kept.
        out.write_all(&[0; 2 * PAGE])?;
        let mut bolt = Bolt { out, next: FREE_LIST_PAGE, buckets: Vec::new() };
        bolt.write_page(FREE_LIST, &[])?;
        Ok(bolt)
    }

    /// Adds a bucket; its keys come in order.
    pub fn bucket<E: From<io::Error>>(
        &mut self,
        name: &str,
        entries: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), E>>,
    ) -> Result<(), E> {
        let elements =
            entries.map(|entry| entry.map(|(key, value)| Element { key, value, flags: 0, page: 0 }));
        let root = self.tree(elements)?;
        self.buckets.push((name.to_owned(), root));
        Ok(())
    }

    /// Finishes the file and gives back what it was written to, with its size.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        let mut buckets = std::mem::take(&mut self.buckets);
        buckets.sort();
        let heads = buckets.into_iter().map(|(name, root)| {
            // A bucket's head: its root, and a sequence that etcd does not use.
            let value = [root.to_le_bytes(), [0; 8]].concat();
            Ok::<_, io::Error>(Element { key: name.into_bytes(), value, flags: BUCKET, page: 0 })
        });
        let root = self.tree(heads)?;
        let size = self.next * PAGE as u64;
        for txid in 0..2_u64 {
            self.out.seek(SeekFrom::Start(txid * PAGE as u64))?;
            self.out.write_all(&meta_page(txid, root, self.next))?;
        }
        self.out.flush()?;
        Ok((self.out, size))
    }

    /// Packs elements into leaves, and those into branches, until one page is left.
    fn tree<E: From<io::Error>>(
        &mut self,
        elements: impl Iterator<Item = Result<Element, E>>,
    ) -> Result<u64, E> {
        let mut level = self.level(LEAF, elements)?;
        while level.len() > 1 {
            let branches = level
                .into_iter()
                .map(|(key, page)| Ok::<_, E>(Element { key, value: Vec::new(), flags: 0, page }));
            level = self.level(BRANCH, branches)?;
        }
        match level.pop() {
            Some((_, root)) => Ok(root),
            None => Ok(self.write_page(LEAF, &[])?),
        }
    }

    /// The pages of one level: the first key of each, and where it lies.
    fn level<E: From<io::Error>>(
        &mut self,
        flags: u16,
        elements: impl Iterator<Item = Result<Element, E>>,
    ) -> Result<Vec<(Vec<u8>, u64)>, E> {
        let mut pages = Vec::new();
        let mut page: Vec<Element> = Vec::new();
        let mut size = PAGE_HEADER;
        for element in elements {
            let element = element?;
            let bytes = ELEMENT + element.key.len() + element.value.len();
            // bbolt wants two keys in a branch at least.
            if page.len() >= 2 && size + bytes > PAGE {
                pages.push((page[0].key.clone(), self.write_page(flags, &page)?));
                page.clear();
                size = PAGE_HEADER;
            }
            size += bytes;
            page.push(element);
        }
        if !page.is_empty() {
            pages.push((page[0].key.clone(), self.write_page(flags, &page)?));
        }
        Ok(pages)
    }

    fn write_page(&mut self, flags: u16, elements: &[Element]) -> io::Result<u64> {
        let heads = PAGE_HEADER + elements.len() * ELEMENT;
        let data: usize = elements.iter().map(|element| element.key.len() + element.value.len()).sum();
        let size = (heads + data).next_multiple_of(PAGE);
        let (id, pages) = (self.next, (size / PAGE) as u64);
        let mut bytes = Vec::with_capacity(size);
        bytes.extend_from_slice(&page_header(id, flags, elements.len() as u16, pages as u32 - 1));
        let mut at = heads;
        for (index, element) in elements.iter().enumerate() {
            let position = (at - PAGE_HEADER - index * ELEMENT) as u32;
            let key_size = element.key.len() as u32;
            if flags == BRANCH {
                bytes.extend_from_slice(&position.to_le_bytes());
                bytes.extend_from_slice(&key_size.to_le_bytes());
                bytes.extend_from_slice(&element.page.to_le_bytes());
            } else {
                let value_size = element.value.len() as u32;
                for number in [element.flags, position, key_size, value_size] {
                    bytes.extend_from_slice(&number.to_le_bytes());
                }
            }
            at += element.key.len() + element.value.len();
        }
        for element in elements {
            bytes.extend_from_slice(&element.key);
            bytes.extend_from_slice(&element.value);
        }
        bytes.resize(size, 0);
        self.out.write_all(&bytes)?;
        self.next += pages;
        Ok(id)
    }
}

fn page_header(id: u64, flags: u16, count: u16, overflow: u32) -> [u8; PAGE_HEADER] {
    let mut header = [0; PAGE_HEADER];
    header[0..8].copy_from_slice(&id.to_le_bytes());
    header[8..10].copy_from_slice(&flags.to_le_bytes());
    header[10..12].copy_from_slice(&count.to_le_bytes());
    header[12..16].copy_from_slice(&overflow.to_le_bytes());
    header
}

fn meta_page(txid: u64, root: u64, pages: u64) -> Vec<u8> {
    let mut meta = Vec::with_capacity(PAGE);
    for number in [MAGIC, VERSION, PAGE as u32, 0] {
        meta.extend_from_slice(&number.to_le_bytes());
    }
    for number in [root, 0, FREE_LIST_PAGE, pages, txid] {
        meta.extend_from_slice(&number.to_le_bytes());
    }
    let checksum = fnv_1a(&meta);
    meta.extend_from_slice(&checksum.to_le_bytes());
    let mut page = page_header(txid, META, 0, 0).to_vec();
    page.append(&mut meta);
    page.resize(PAGE, 0);
    page
}

fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
