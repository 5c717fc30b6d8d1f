//! Leases on disk: one file per address, named by it, holding the container and interface it is for.
//!
//! The layout is that of the CNI project's own `host-local` (`DIR/NETWORK/ADDRESS`, with
//! `last_reserved_ip.N` and `lock` beside), so either can take over the other's leases. The folder's
//! lock is held from reading to writing, so concurrent calls never lease one address twice.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    net::IpAddr,
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};

use super::{Result, error};

/// Whose a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner<'a> {
    pub container_id: &'a str,
    pub ifname: &'a str,
}

impl Owner<'_> {
    fn text(&self) -> String {
        format!("{}\r\n{}", self.container_id, self.ifname)
    }

    fn is(&self, text: &str) -> bool {
        let mut lines = text.lines().map(str::trim);
        // Leases of the oldest plugins have no interface: the container alone decides then.
        lines.next() == Some(self.container_id) && lines.next().is_none_or(|ifname| ifname == self.ifname)
    }
}

/// The locked folder of one network's leases; the lock ends with this value.
pub(super) struct Leases {
    folder: PathBuf,
    _lock: Flock<File>,
}

impl Leases {
    pub fn lock(data_dir: &Path, network: &str) -> Result<Self> {
        let folder = data_dir.join(network);
        fs::create_dir_all(&folder).map_err(|e| error::io("making the folder of leases", &folder, &e))?;
        let path = folder.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|e| error::io("opening", &path, &e))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| error::io("locking", &path, &errno.into()))?;
        Ok(Self { folder, _lock: lock })
    }

    /// Takes an address; false when it has an owner already.
    pub fn take(&self, address: IpAddr, owner: &Owner) -> Result<bool> {
        let path = self.file(address);
        if path.exists() {
            return Ok(false);
        }
        self.write(&path, &owner.text())?;
        Ok(true)
    }

    /// All leases with their owners' text.
    pub fn all(&self) -> Result<Vec<(IpAddr, String)>> {
        let read = || -> io::Result<Vec<(IpAddr, String)>> {
            let mut leases = Vec::new();
            for entry in fs::read_dir(&self.folder)? {
                let entry = entry?;
                // A file name cannot hold the colons of IPv6 everywhere; the CNI project writes them
                // as underscores on such systems, never on Linux.
                let Some(address) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                    continue;
                };
                leases.push((address, fs::read_to_string(entry.path())?));
            }
            Ok(leases)
        };
        read().map_err(|e| error::io("reading the leases in", &self.folder, &e))
    }

    pub fn of(&self, owner: &Owner) -> Result<Vec<IpAddr>> {
        Ok(self.all()?.into_iter().filter(|(_, text)| owner.is(text)).map(|(address, _)| address).collect())
    }

    /// Gives back every address of an owner; none is no error.
    pub fn release(&self, owner: &Owner) -> Result<()> {
        self.of(owner)?.into_iter().try_for_each(|address| self.release_address(address))
    }

    /// Gives back every address whose owner is not among `valid`.
    pub fn release_others(&self, valid: &[Owner]) -> Result<()> {
        for (address, text) in self.all()? {
            if !valid.iter().any(|owner| owner.is(&text)) {
                self.release_address(address)?;
            }
        }
        Ok(())
    }

    pub fn release_address(&self, address: IpAddr) -> Result<()> {
        let path = self.file(address);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(error::io("removing the lease", &path, &e)),
            _ => Ok(()),
        }
    }

    /// The address leased last in a range set, where the search for the next begins: an address just
    /// given back is not used again at once, while others may still remember its last holder.
    pub fn last(&self, range_set: usize) -> Option<IpAddr> {
        fs::read_to_string(self.last_file(range_set)).ok()?.trim().parse().ok()
    }

    pub fn set_last(&self, range_set: usize, address: IpAddr) -> Result<()> {
        self.write(&self.last_file(range_set), &address.to_string())
    }

    fn file(&self, address: IpAddr) -> PathBuf {
        self.folder.join(address.to_string())
    }

    fn last_file(&self, range_set: usize) -> PathBuf {
        self.folder.join(format!("last_reserved_ip.{range_set}"))
    }

    /// Whole or not at all: a plugin killed while writing leaves no lease without an owner.
    fn write(&self, path: &Path, text: &str) -> Result<()> {
        let draft = self.folder.join(".draft");
        let written = File::create(&draft)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&draft, path));
        written.map_err(|e| error::io("writing", path, &e))
    }
}
