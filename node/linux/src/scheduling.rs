//! How the kernel chooses when a thread runs.

use std::io;

/// The calling thread works in batches: it still runs at once where a processor is free, but when it wakes it does not
/// push aside a thread that is at work. What it waits for then gathers, at nobody's cost.
#[allow(unsafe_code)]
pub fn work_in_batches() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and the parameters are only read.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code)]
    fn only_the_thread_that_asks_works_in_batches() {
        // SAFETY: asks about the calling thread and takes no pointer.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let inside = std::thread::spawn(move || {
            work_in_batches().expect("needs no rights");
            policy()
        });
        assert_eq!(inside.join().expect("the thread ends"), libc::SCHED_BATCH);
        assert_eq!(policy(), before);
    }
}
