//! The archive that `setup-envtest sideload` takes, laid out as upstream's: etcd, kube-apiserver and kubectl in one directory.
//!
//! setup-envtest unpacks plain files only, into one directory and without links. So the program is in it once, with a script
//! for each name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Release, copy, pack, set_mode, write};

const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];
/// Where upstream's archive has them.
const DIRECTORY: &str = "controller-tools/envtest";

pub fn archive(release: &Release, out: &Path) -> Result<PathBuf> {
    let name = format!("ferry-{}-envtest-{}", release.version, release.elf.architecture);
    let root = out.join(&name);
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("empty {}", root.display()))?;
    }
    let directory = root.join(DIRECTORY);
    copy(&release.staging.join("ferry"), &directory.join("ferry"), 0o755)?;
    for program in PROGRAMS {
        let path = directory.join(program);
        write(&path, &script(program))?;
        set_mode(&path, 0o755)?;
    }
    pack(release, out, &name, &root, "controller-tools")
}

fn script(program: &str) -> String {
    format!("#!/bin/sh\nexec \"${{0%/*}}/ferry\" --called-as={program} \"$@\"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_calls_the_program_beside_it_by_its_own_name() {
        use std::process::Command;
        let directory = std::env::temp_dir().join(format!("ferry-envtest-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let file = |name: &str, text: &str| {
            let path = directory.join(name);
            write(&path, text).expect("written");
            set_mode(&path, 0o755).expect("a mode");
            path
        };
        file("ferry", "#!/bin/sh\nprintf '%s,' \"$@\"\n");
        let etcd = file("etcd", &script("etcd"));
        let output = Command::new(etcd).args(["--name=a b", "--help"]).output().expect("it runs");
        fs::remove_dir_all(&directory).expect("removed");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "--called-as=etcd,--name=a b,--help,");
    }
}
