//! The memory of this process: what it holds without using it goes back to the kernel.

mod program;

use std::time::Duration;

use nix::sys::prctl;

/// How often what is free goes back.
const ROUND: Duration = Duration::from_secs(10);

/// For processes that live long and should be small: what the start needed is given back. The allocator does so by
/// itself only while it is at work, and an idle server's is not: it kept 17 MB of 28.
pub fn keep_small() -> std::io::Result<()> {
    std::thread::Builder::new().name("ferry-memory".into()).stack_size(64 * 1024).spawn(|| {
        loop {
            std::thread::sleep(ROUND);
            give_back();
            program::let_go();
        }
    })?;
    Ok(())
}

/// Starts another program, which should have huge pages if it wants them. The allocator turned them off for this
/// process, since they round every heap up to megabytes, and children inherit that.
pub fn with_huge_pages<T>(start: impl FnOnce() -> T) -> T {
    let was_off = prctl::get_thp_disable().unwrap_or(false);
    let set = |off: bool| {
        if was_off && let Err(error) = prctl::set_thp_disable(off) {
            tracing::debug!(%error, "huge pages cannot be switched");
        }
    };
    set(false);
    let started = start();
    set(true);
    started
}

#[allow(unsafe_code)]
fn give_back() {
    // SAFETY: takes no pointer, may be called by any thread at any time, and where another allocator is in use there
    // is nothing to collect.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_gets_the_pages_it_wants() {
        prctl::set_thp_disable(true).expect("a setting of this process");
        assert!(!with_huge_pages(|| prctl::get_thp_disable().expect("the setting")));
        assert!(prctl::get_thp_disable().expect("the setting"));
        prctl::set_thp_disable(false).expect("as it was");
        with_huge_pages(|| ());
        assert!(!prctl::get_thp_disable().expect("the setting"));
    }
}
