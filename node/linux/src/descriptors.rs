//! How many files and connections this process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Lifts the soft limit to the hard one, as Go programs do at their start: the soft one is kept low, at 1024 as a rule,
/// for programs that use `select`. Returns the limit.
pub fn raise_limit() -> std::io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let hard = raise_limit().expect("a limit of this process");
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).expect("the limit"), (hard, hard));
    }
}
