//! Programs of the host that a node cannot do without. They are looked for before anything is started: a part that lacks
//! one would be started again and again.

use anyhow::bail;
use ferry_linux::programs::in_path;

use super::options::ProxyMode;

struct Program {
    name: &'static str,
    /// Debian's.
    package: &'static str,
    reason: &'static str,
}

const NFT: Program =
    Program { name: "nft", package: "nftables", reason: "writes the rules of pods and Services" };
const IPTABLES: Program = Program {
    name: "iptables-restore",
    package: "iptables",
    reason: "writes the rules of Services for --proxy-mode iptables",
};

/// Says what is missing, and how it is installed.
pub fn must_be_installed(mode: ProxyMode) -> anyhow::Result<()> {
    match missing(mode, in_path) {
        Some(words) => bail!(words),
        None => Ok(()),
    }
}

fn missing(mode: ProxyMode, is_there: impl Fn(&str) -> bool) -> Option<String> {
    let needed: &[Program] = match mode {
        ProxyMode::Nftables => &[NFT],
        ProxyMode::Iptables => &[NFT, IPTABLES],
    };
    let missing: Vec<&Program> = needed.iter().filter(|program| !is_there(program.name)).collect();
    let packages: Vec<&str> = missing.iter().map(|program| program.package).collect();
    let list: Vec<String> =
        missing.iter().map(|program| format!("{}, which {}", program.name, program.reason)).collect();
    (!missing.is_empty()).then(|| {
        format!("not in the PATH: {} (on Debian: apt-get install {})", list.join("; "), packages.join(" "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_named_with_their_package() {
        assert_eq!(missing(ProxyMode::Iptables, |_| true), None);
        assert_eq!(missing(ProxyMode::Nftables, |name| name == "nft"), None);
        let words = missing(ProxyMode::Iptables, |_| false).expect("both are missing");
        assert_eq!(
            words,
            "not in the PATH: nft, which writes the rules of pods and Services; iptables-restore, which writes \
             the rules of Services for --proxy-mode iptables (on Debian: apt-get install nftables iptables)"
        );
    }
}
