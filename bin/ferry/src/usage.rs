//! CPU and memory of a process, as the kernel counts them.

use anyhow::Context;

pub struct Usage {
    pub resident_bytes: u64,
    pub cpu_seconds: f64,
    pub up_seconds: f64,
}

pub fn of(pid: u32) -> anyhow::Result<Usage> {
    let read = |name: &str| {
        let path = format!("/proc/{pid}/{name}");
        std::fs::read_to_string(&path).with_context(|| format!("read {path}"))
    };
    let uptime = std::fs::read_to_string("/proc/uptime").context("read /proc/uptime")?;
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("the kernel's clock")?;
    parse_usage(&read("stat")?, &read("statm")?, &uptime, ticks as f64)
        .with_context(|| format!("understand what the kernel says of process {pid}"))
}

fn parse_usage(stat: &str, statm: &str, uptime: &str, ticks: f64) -> Option<Usage> {
    // The program's name may hold anything; fields are counted from behind it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let page = 4096;
    Some(Usage {
        resident_bytes: statm.split_whitespace().nth(1)?.parse::<u64>().ok()? * page,
        cpu_seconds: (field(14)? + field(15)?) / ticks,
        up_seconds: uptime.split_whitespace().next()?.parse::<f64>().ok()? - field(22)? / ticks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_usage_is_parsed_from_procfs() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1000 1 1";
        let usage = parse_usage(stat, "100 25 10 1 0 50 0", "110.00 200.00", 100.0).unwrap();
        assert_eq!((usage.resident_bytes, usage.cpu_seconds, usage.up_seconds), (102_400, 3.0, 100.0));
        assert!(parse_usage("7 (x) S", "1 2", "1 1", 100.0).is_none());
    }
}
