//! The Rust that is checked in for a protocol is what its protocol files generate. `FERRY_REWRITE=1` writes it again; the
//! difference is reviewed.

use std::path::{Path, PathBuf};

/// A protocol: the crate that has it, and its files below `proto/`.
struct Protocol {
    room: &'static str,
    files: &'static [&'static str],
    /// Whether the stubs that call it are generated too.
    client: bool,
    /// And those that serve it.
    server: bool,
    /// Where fields of bytes share the memory of their message: values of a store may be large.
    shared_bytes: &'static [&'static str],
}

const PROTOCOLS: &[Protocol] = &[
    Protocol { room: "node/cri-api", files: &["api.proto"], client: false, server: false, shared_bytes: &[] },
    Protocol {
        room: "node/plugins-api",
        files: &[
            "pluginregistration.proto",
            "dra.proto",
            "dra_health.proto",
            "deviceplugin.proto",
            "podresources.proto",
            "csi.proto",
        ],
        client: true,
        server: true,
        shared_bytes: &[],
    },
    Protocol {
        room: "server/etcd-api",
        files: &["etcd/api/etcdserverpb/rpc.proto"],
        client: true,
        server: false,
        shared_bytes: &["."],
    },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Rust for each package of the protocol: the names of its files and what is in them.
fn generate(protocol: &Protocol) -> Vec<(String, String)> {
    let descriptors = protox::compile(protocol.files, [root().join(protocol.room).join("proto")])
        .unwrap_or_else(|error| panic!("{}: {error}", protocol.room));
    let directory = tempfile::tempdir().expect("a directory");
    let mut generator = tonic_prost_build::configure()
        .build_server(protocol.server)
        .build_client(protocol.client)
        .build_transport(false)
        .out_dir(directory.path());
    for fields in protocol.shared_bytes {
        generator = generator.bytes(fields);
    }
    generator.compile_fds(descriptors).unwrap_or_else(|error| panic!("{}: {error}", protocol.room));
    let mut files: Vec<_> = std::fs::read_dir(directory.path())
        .expect("the directory is there")
        .map(|entry| {
            let entry = entry.expect("the directory is there");
            let name = entry.file_name().into_string().expect("a package has a name in ASCII");
            (name, std::fs::read_to_string(entry.path()).expect("what was generated"))
        })
        .collect();
    files.sort();
    files
}

#[test]
fn rust_for_the_protocols_is_what_their_files_generate() {
    for protocol in PROTOCOLS {
        for (name, generated) in generate(protocol) {
            let path = root().join(protocol.room).join("src").join(&name);
            if std::env::var_os("FERRY_REWRITE").is_some() {
                std::fs::write(&path, &generated)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            }
            let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                checked_in == generated,
                "{}/src/{name} is not what {}/proto generates; FERRY_REWRITE=1 rewrites it",
                protocol.room,
                protocol.room
            );
        }
    }
}
