//! Directories, files and devices of the node itself.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("hostPath type check failed: {path} is not a {wanted}")]
    Type { path: String, wanted: &'static str },
    #[error("hostPath {path}: {source}")]
    Create { path: String, source: io::Error },
    #[error("hostPath type {0} is unknown")]
    Unknown(String),
}

/// Makes sure that a path is what the volume says it is, making it where the
/// type asks for that.
pub fn prepare(path: &Path, kind: &str) -> Result<(), Error> {
    let shown = || path.display().to_string();
    let check = |wanted: &'static str, is: &dyn Fn(fs::FileType) -> bool| {
        let right = fs::metadata(path).is_ok_and(|metadata| is(metadata.file_type()));
        if right { Ok(()) } else { Err(Error::Type { path: shown(), wanted }) }
    };
    let create = |source| Error::Create { path: shown(), source };
    match kind {
        "" => Ok(()),
        "DirectoryOrCreate" => {
            if !path.exists() {
                fs::create_dir_all(path).map_err(create)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(create)?;
            }
            check("directory", &|kind| kind.is_dir())
        }
        "FileOrCreate" => {
            if !path.exists() {
                fs::File::create(path).map_err(create)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(create)?;
            }
            check("file", &|kind| kind.is_file())
        }
        "Directory" => check("directory", &|kind| kind.is_dir()),
        "File" => check("file", &|kind| kind.is_file()),
        "Socket" => check("socket file", &|kind| kind.is_socket()),
        "CharDevice" => check("character device", &|kind| kind.is_char_device()),
        "BlockDevice" => check("block device", &|kind| kind.is_block_device()),
        other => Err(Error::Unknown(other.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_is_checked_or_made() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let path = |name: &str| directory.path().join(name);
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).expect("a socket can be made");
        fs::write(path("file"), "").expect("a file can be written");
        for (name, kind, fits) in [
            ("missing", "", true),
            ("new/dir", "DirectoryOrCreate", true),
            ("new/dir", "Directory", true),
            ("new/file", "FileOrCreate", true),
            ("none/file", "FileOrCreate", false),
            ("new/file", "File", true),
            ("new/file", "Directory", false),
            ("new/dir", "FileOrCreate", false),
            ("file", "DirectoryOrCreate", false),
            ("missing", "Directory", false),
            ("socket", "Socket", true),
            ("file", "Socket", false),
            ("file", "CharDevice", false),
            ("file", "Odd", false),
        ] {
            assert_eq!(prepare(&path(name), kind).is_ok(), fits, "{name} as {kind}");
        }
        assert!(prepare(Path::new("/dev/null"), "CharDevice").is_ok());
        assert!(prepare(Path::new("/dev/null"), "BlockDevice").is_err());
    }
}
