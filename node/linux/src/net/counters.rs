//! What a process's interfaces have carried, from the kernel's table of its network namespace.

use std::io;

/// Since the interface was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub interface: String,
    pub received: Direction,
    pub sent: Direction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// The interfaces that a process sees, but for the loopback.
pub fn of_process(pid: i32) -> io::Result<Vec<Counters>> {
    Ok(parse(&std::fs::read_to_string(format!("/proc/{pid}/net/dev"))?))
}

fn parse(table: &str) -> Vec<Counters> {
    let lines = table.lines().filter_map(|line| line.split_once(':'));
    lines
        .filter(|(name, _)| name.trim() != "lo")
        .filter_map(|(name, values)| {
            let values: Vec<u64> = values.split_whitespace().filter_map(|value| value.parse().ok()).collect();
            let direction = |at: usize| {
                let [bytes, packets, errors, dropped] = *values.get(at..at + 4)?.first_chunk()?;
                Some(Direction { bytes, packets, errors, dropped })
            };
            Some(Counters { interface: name.trim().into(), received: direction(0)?, sent: direction(8)? })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_understood() {
        let table = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
  eth0:1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0
";
        let received = Direction { bytes: 1000, packets: 10, errors: 1, dropped: 2 };
        let sent = Direction { bytes: 2000, packets: 20, errors: 3, dropped: 4 };
        assert_eq!(parse(table), [Counters { interface: "eth0".into(), received, sent }]);
        assert_eq!(parse("eth0: 1 2"), []);
    }
}
