//! The program's own pages. Its code and constants are in memory once they were needed, most of them at the start
//! and never again; of an idle cluster's memory they were three quarters. They are the file's, unchanged, so they can
//! be let go at any time: what is needed again comes back from the page cache in a microsecond.

use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;

/// Lets go of all pages of the program that cannot have been changed. A debugger does change them, to stop the program
/// where it was told to: while one looks on, everything stays.
pub fn let_go() {
    match is_debugged() {
        Ok(false) => drop_pages(),
        Ok(true) => {}
        Err(error) => tracing::debug!(%error, "pages of the program stay in memory"),
    }
}

fn is_debugged() -> io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.map(|pid| pid.trim() != "0").ok_or_else(|| io::Error::other("/proc/self/status names no tracer"))
}

#[allow(unsafe_code)]
fn drop_pages() {
    for pages in unchangeable() {
        // SAFETY: the range is a segment of this program that was loaded without the right to write, so each of its
        // pages is as the file has it, and the kernel reads it from there again when it is next touched.
        let refused =
            unsafe { libc::madvise(pages.start as *mut c_void, pages.len(), libc::MADV_DONTNEED) } != 0;
        if refused {
            let error = io::Error::last_os_error();
            tracing::debug!(%error, "pages of the program stay in memory");
        }
    }
}

/// The segments that were loaded without the right to write. What the loader relocates and then protects belongs to a
/// writable one and is not among them.
#[allow(unsafe_code)]
fn unchangeable() -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    // SAFETY: the callback runs before the call returns, with the pointer it was given, and keeps neither.
    unsafe { libc::dl_iterate_phdr(Some(of_the_program), (&raw mut found).cast()) };
    found
}

/// Called for the program itself first; then it stops, since libraries are shared with others.
#[allow(unsafe_code)]
unsafe extern "C" fn of_the_program(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the loader hands in a valid description, and `found` is what `unchangeable` gave it.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Vec<Range<usize>>>()) };
    if info.dlpi_phdr.is_null() {
        return 1;
    }
    // SAFETY: the headers are `dlpi_phnum` in a row, and stay for as long as the program runs.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let page = page_size();
    for header in
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0)
    {
        let start = info.dlpi_addr as usize + header.p_vaddr as usize;
        // Pages at the edges may be shared with a segment that can be written to.
        let whole = start.next_multiple_of(page)..(start + header.p_memsz as usize) / page * page;
        if !whole.is_empty() {
            found.push(whole);
        }
    }
    1
}

fn page_size() -> usize {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| usize::try_from(size).ok())
        .unwrap_or(64 * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_program_pages_are_read_again() {
        static CONSTANT: &str = "a constant of the program";
        let function = page_size as *const () as usize;
        let ranges = unchangeable();
        assert!(ranges.iter().any(|range| range.contains(&function)), "the code is among {ranges:?}");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("this process' maps");
        for range in &ranges {
            let line = maps
                .lines()
                .find(|line| {
                    let (from, rest) = line.split_once('-').expect("a range");
                    let to = rest.split(' ').next().expect("its end");
                    let address = |text| usize::from_str_radix(text, 16).expect("an address");
                    (address(from)..address(to)).contains(&range.start)
                })
                .expect("the range is mapped");
            assert_ne!(line.split(' ').nth(1).expect("rights").as_bytes()[1], b'w', "{line}");
        }
        let before = resident_of_file();
        let_go();
        assert!(resident_of_file() < before, "less of the program is in memory");
        assert_eq!((CONSTANT.len(), page_size().count_ones()), (25, 1));
    }

    fn resident_of_file() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("this process' status");
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).expect("RssFile");
        line.trim().trim_end_matches(" kB").parse().expect("kilobytes")
    }
}
