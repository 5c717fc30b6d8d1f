//! Debian's packages: what a fresh machine lacks is installed, what is there is left alone.

use anyhow::{Context, Result, bail};

use crate::step;

/// A program that has to be there, or a file where there is none, and the package that brings it.
pub struct Needed {
    pub program: &'static str,
    pub package: &'static str,
}

/// To run a cluster.
pub const TO_RUN: &[Needed] = &[
    Needed { program: "containerd", package: "containerd" },
    Needed { program: "runc", package: "runc" },
    Needed { program: "nft", package: "nftables" },
    Needed { program: "conntrack", package: "conntrack" },
];

/// To pass the tests: the real parts that Ferry works with.
pub const FOR_TESTS: &[Needed] = &[
    // libFuzzer is C++.
    Needed { program: "c++", package: "g++" },
    Needed { program: "etcd", package: "etcd-server" },
    Needed { program: "etcdctl", package: "etcd-client" },
    Needed { program: "kubectl", package: "kubernetes-client" },
    Needed { program: "containerd", package: "containerd" },
    Needed { program: "runc", package: "runc" },
    Needed { program: "nft", package: "nftables" },
    Needed { program: "iptables", package: "iptables" },
    Needed { program: "conntrack", package: "conntrack" },
    Needed { program: "ip", package: "iproute2" },
    Needed { program: "busybox", package: "busybox-static" },
    Needed { program: "/usr/lib/cni/bridge", package: "containernetworking-plugins" },
    Needed { program: "chromium", package: "chromium" },
    Needed { program: "chromedriver", package: "chromium-driver" },
    Needed { program: "docker-registry", package: "docker-registry" },
    Needed { program: "prometheus", package: "prometheus" },
    Needed {
        program: "/usr/lib/python3/dist-packages/kubernetes/__init__.py",
        package: "python3-kubernetes",
    },
];

/// Installs those of them that are missing.
pub fn install(needed: &[Needed]) -> Result<()> {
    // Root's PATH may lack the directories where system programs live.
    let missing: Vec<&str> = needed
        .iter()
        .filter(|needed| {
            !step::has(needed.program)
                && !["/usr/sbin", "/sbin", "/bin", "/usr/bin"]
                    .iter()
                    .any(|directory| std::path::Path::new(directory).join(needed.program).is_file())
        })
        .map(|needed| needed.package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !step::has("apt-get") {
        bail!("please install: {}", missing.join(" "));
    }
    let mut words = vec!["install", "--yes", "--no-install-recommends"];
    words.extend(&missing);
    // A service that starts by itself would get in the way of the tests' own.
    let quiet = [("DEBIAN_FRONTEND", "noninteractive"), ("RUNLEVEL", "1")];
    let apt = |words: &[&str]| -> Result<()> {
        println!("==> apt-get {}", words.join(" "));
        let status = std::process::Command::new("apt-get")
            .args(words)
            .envs(quiet)
            .stdin(std::process::Stdio::null())
            .status()
            .context("start apt-get")?;
        if status.success() { Ok(()) } else { bail!("apt-get {} failed: {status}", words.join(" ")) }
    };
    apt(&["update", "--quiet"])?;
    apt(&words)
}
