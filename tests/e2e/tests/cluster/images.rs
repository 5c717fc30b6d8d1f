//! An nginx image assembled from Debian's packages, in a registry of the test's own that stands for
//! docker.io.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::host::{free_port, in_path, run};

/// nginx, the libraries it loads, busybox for small tools, and bash, which opens connections by name: a static
/// busybox cannot load the libraries that look names up.
const PACKAGES: [&str; 10] = [
    "nginx",
    "nginx-common",
    "libc6",
    "libcrypt1",
    "libpcre2-8-0",
    "libssl3",
    "zlib1g",
    "bash",
    "libtinfo6",
    "busybox-static",
];
const TOOLS: [&str; 12] =
    ["sh", "cat", "chmod", "ls", "mkdir", "nslookup", "rm", "sleep", "tar", "timeout", "touch", "true"];

/// A registry with one image.
pub struct Registry {
    child: Child,
    pub address: String,
    /// The settings that make containerd ask it for docker.io's images.
    pub config_dir: PathBuf,
}

/// Who may pull.
pub enum Access {
    Open,
    /// `USER` with `PASSWORD`.
    Guarded,
}

pub const USER: &str = "pilot";
pub const PASSWORD: &str = "sail";
/// The password as htpasswd(1) would write it (bcrypt, which is all the registry takes).
const HTPASSWD: &str = "pilot:$2y$05$abcdefghijklmnopqrstuu06gU5KQ.N.GQ.zP8gNvVHV78FIYAZne\n";

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    pub fn start(directory: &Path, root: &Path, access: Access) -> Registry {
        let storage = directory.join("registry");
        put_nginx(&storage, root);
        let address = format!("127.0.0.1:{}", free_port());
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": storage}},
            "http": {"addr": address},
        });
        if matches!(access, Access::Guarded) {
            let passwords = directory.join("htpasswd");
            fs::write(&passwords, HTPASSWD).unwrap();
            config["auth"] = json!({"htpasswd": {"realm": "harbour", "path": passwords}});
        }
        let file = directory.join("registry.yml");
        fs::write(&file, config.to_string()).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is installed by `cargo xtask test`");
        let config_dir = directory.join("certs.d");
        let registry = Registry { child, address, config_dir };
        registry.trust_in(&registry.config_dir, "docker.io");
        registry
    }

    /// Makes containerd ask this registry, in plain HTTP, for the images of `host`.
    pub fn trust_in(&self, config_dir: &Path, host: &str) {
        fs::create_dir_all(config_dir.join(host)).unwrap();
        let url = format!("http://{}", self.address);
        let hosts = format!("server = \"{url}\"\n[host.\"{url}\"]\ncapabilities = [\"pull\", \"resolve\"]\n");
        fs::write(config_dir.join(host).join("hosts.toml"), hosts).unwrap();
    }
}

/// What is in the image.
pub fn root_file_system(directory: &Path) -> PathBuf {
    let root = unpack(directory, &PACKAGES);
    for directory in ["tmp", "run", "root", "var/log/nginx", "var/lib/nginx", "var/www/html"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
    for tool in TOOLS {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(tool)).unwrap();
    }
    let settings = root.join("etc/nginx/nginx.conf");
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, text.replace("user www-data;", "user root;")).unwrap();
    // What the package's installation scripts would have done.
    let site = "server { listen 80; root /var/www/html; }\n";
    fs::write(root.join("etc/nginx/conf.d/default.conf"), site).unwrap();
    fs::write(root.join("var/www/html/index.html"), "welcome to nginx\n").unwrap();
    root
}

/// The content of Debian's packages, without what their installation scripts would do.
fn unpack(directory: &Path, names: &[&str]) -> PathBuf {
    let packages = directory.join("packages");
    let root = directory.join("root");
    for path in [&packages, &root] {
        fs::create_dir_all(path).unwrap();
    }
    let download = || {
        let mut apt = Command::new("apt-get");
        apt.arg("download").args(names).current_dir(&packages);
        apt
    };
    // The list of packages may be missing, or older than what the archive has.
    if !download().output().is_ok_and(|output| output.status.success()) {
        run(Command::new("apt-get").args(["update", "--quiet"]));
        run(&mut download());
    }
    for package in fs::read_dir(&packages).unwrap() {
        run(Command::new("dpkg").arg("-x").arg(package.unwrap().path()).arg(&root));
    }
    root
}

/// PostgreSQL, its client and the libraries they load; busybox for a shell.
const POSTGRES: [&str; 41] = [
    "postgresql-15",
    "postgresql-client-15",
    "busybox-static",
    "libaudit1",
    "libc6",
    "libcap-ng0",
    "libcap2",
    "libcom-err2",
    "libffi8",
    "libgcc-s1",
    "libgcrypt20",
    "libgmp10",
    "libgnutls30",
    "libgpg-error0",
    "libgssapi-krb5-2",
    "libhogweed6",
    "libicu72",
    "libidn2-0",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "libldap-2.5-0",
    "liblz4-1",
    "liblzma5",
    "libnettle8",
    "libp11-kit0",
    "libpam0g",
    "libpq5",
    "libreadline8",
    "libsasl2-2",
    "libssl3",
    "libstdc++6",
    "libsystemd0",
    "libtasn1-6",
    "libtinfo6",
    "libunistring2",
    "libxml2",
    "libzstd1",
    "tzdata",
    "zlib1g",
];
/// Whom PostgreSQL runs as; it refuses root.
pub const POSTGRES_USER: u32 = 999;

/// An archive with the image `postgres`, and what starts in it: a database in `/data/pg`, made when it is not there.
pub fn postgres(directory: &Path) -> PathBuf {
    let root = unpack(directory, &POSTGRES);
    for heavy in ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/lib/postgresql/15/lib/bitcode"] {
        let _ = fs::remove_dir_all(root.join(heavy));
    }
    for directory in ["tmp", "run", "data", "etc"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    std::os::unix::fs::symlink("busybox", root.join("bin/sh")).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    fs::set_permissions(root.join("tmp"), open).unwrap();
    let user = format!("postgres:x:{POSTGRES_USER}:{POSTGRES_USER}::/tmp:/bin/sh\n");
    fs::write(root.join("etc/passwd"), user).unwrap();
    fs::write(root.join("etc/group"), format!("postgres:x:{POSTGRES_USER}:\n")).unwrap();
    let script = "#!/bin/sh\n\
        export PATH=/usr/lib/postgresql/15/bin:$PATH\n\
        [ -s /data/pg/PG_VERSION ] || initdb -D /data/pg -U postgres --auth=trust --no-locale -E UTF8 || exit 1\n\
        exec postgres -D /data/pg -k /tmp -c jit=off -c listen_addresses=\n";
    let start = root.join("start");
    fs::write(&start, script).unwrap();
    fs::set_permissions(&start, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    archive_of(directory, &root, "postgres")
}

/// Writes the image where the registry keeps its own.
fn put_nginx(storage: &Path, root: &Path) {
    let registry = storage.join("docker/registry/v2");
    let put = |bytes: &[u8]| -> String {
        let draft = storage.join("draft");
        fs::create_dir_all(storage).unwrap();
        fs::write(&draft, bytes).unwrap();
        let digest = digest(&draft);
        let place = registry.join("blobs/sha256").join(&digest[..2]).join(&digest);
        fs::create_dir_all(&place).unwrap();
        fs::rename(&draft, place.join("data")).unwrap();
        format!("sha256:{digest}")
    };
    let layer = tar(root);
    let layer_digest = put(&layer);
    let config = config(&layer_digest);
    let config_digest = put(config.as_bytes());
    let describe = |kind: &str, digest: &str, size: usize| -> Value {
        json!({"mediaType": format!("application/vnd.docker.{kind}"), "digest": digest, "size": size})
    };
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": describe("container.image.v1+json", &config_digest, config.len()),
        "layers": [describe("image.rootfs.diff.tar", &layer_digest, layer.len())],
    });
    let manifest_digest = put(manifest.to_string().as_bytes());
    let repository = registry.join("repositories/library/nginx");
    let link = |place: &str, digest: &str| {
        let place = repository.join(place);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("link"), digest).unwrap();
    };
    for blob in [&layer_digest, &config_digest] {
        link(&format!("_layers/{}", blob.replace(':', "/")), blob);
    }
    link(&format!("_manifests/revisions/{}", manifest_digest.replace(':', "/")), &manifest_digest);
    link(&format!("_manifests/tags/latest/index/{}", manifest_digest.replace(':', "/")), &manifest_digest);
    link("_manifests/tags/latest/current", &manifest_digest);
}

/// The same image as `docker save` writes it, for hosts that reach no registry.
pub fn archive(directory: &Path, root: &Path) -> PathBuf {
    archive_of(directory, root, "nginx")
}

/// An archive with an image named as the program is: the program alone, and the libraries it is linked with.
pub fn of_program(directory: &Path, program: &Path) -> PathBuf {
    let name = program.file_name().unwrap();
    let root = directory.join("root");
    fs::create_dir_all(&root).unwrap();
    // Tests are built with what a debugger needs.
    if in_path("strip") {
        run(Command::new("strip").arg(program).arg("-o").arg(root.join(name)));
    } else {
        fs::copy(program, root.join(name)).unwrap();
    }
    let libraries = String::from_utf8(run(Command::new("ldd").arg(program))).unwrap();
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let place = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(library, place).unwrap();
    }
    archive_of(directory, &root, name.to_str().unwrap())
}

fn archive_of(directory: &Path, root: &Path, name: &str) -> PathBuf {
    let content = directory.join("archive");
    fs::create_dir_all(&content).unwrap();
    let layer = content.join("layer.tar");
    fs::write(&layer, tar(root)).unwrap();
    let config = config(&format!("sha256:{}", digest(&layer)));
    fs::write(content.join("config.json"), config).unwrap();
    let manifest =
        json!([{"Config": "config.json", "RepoTags": [format!("{name}:latest")], "Layers": ["layer.tar"]}]);
    fs::write(content.join("manifest.json"), manifest.to_string()).unwrap();
    let file = directory.join(format!("{name}.tar"));
    fs::write(&file, tar(&content)).unwrap();
    file
}

fn tar(directory: &Path) -> Vec<u8> {
    run(Command::new("tar").args(["--create", "--numeric-owner", "--directory"]).arg(directory).arg("."))
}

fn config(layer: &str) -> String {
    json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["nginx", "-g", "daemon off;"]},
        "rootfs": {"type": "layers", "diff_ids": [layer]},
    })
    .to_string()
}

fn digest(file: &Path) -> String {
    let printed = String::from_utf8(run(Command::new("sha256sum").arg(file))).unwrap();
    printed.split_whitespace().next().unwrap().to_owned()
}
