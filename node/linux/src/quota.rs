//! How much a directory may hold: project quotas, which ext4 and XFS keep where they are mounted with `prjquota`.
//!
//! A project is a number that a directory's files inherit from it; the file system counts what the files of one number
//! take, and refuses what is beyond their limit. Everything here works on open descriptors, by `quotactl_fd` (Linux
//! 5.14): no device has to be found, and nothing can be put in a directory's place meanwhile.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

/// Numbers from here on are ours to take where they are free; administrators' own lie far below.
const FIRST: u32 = 0x4000_0000;
const NUMBERS: u32 = 0x2000_0000;
/// How many numbers are tried before we take it that something is wrong.
const MOST_TRIES: u32 = 4096;

const PRJQUOTA: u32 = 2;
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
const QIF_BLIMITS: u32 = 1;
/// Limits are given in blocks of this size, whatever the file system's own are.
const BLOCK: u64 = 1024;

const FS_IOC_FSGETXATTR: u64 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u64 = 0x401c_5820;
const FS_XFLAG_PROJINHERIT: u32 = 0x200;

/// Lets a directory hold at most so many bytes. `false` where the file system keeps no such limits, or where the
/// directory has files already that no limit counts.
pub fn limit(directory: &Path, bytes: u64) -> io::Result<bool> {
    let directory = open_directory(directory)?;
    let Some(mut attributes) = supported(attributes(&directory))? else { return Ok(false) };
    if supported(usage(&directory, attributes.project))?.is_none() {
        return Ok(false);
    }
    if attributes.flags & FS_XFLAG_PROJINHERIT == 0 || attributes.project < FIRST {
        if !is_empty(&directory)? {
            return Ok(false);
        }
        let start = inode(&directory)?;
        let Some(free) = choose(start, |number| usage(&directory, number).map(|usage| usage.is_unused()))?
        else {
            return Ok(false);
        };
        attributes.project = free;
        attributes.flags |= FS_XFLAG_PROJINHERIT;
        if supported(set_attributes(&directory, &attributes))?.is_none() {
            return Ok(false);
        }
    }
    set_limit(&directory, attributes.project, bytes)?;
    Ok(true)
}

/// The project of a directory that [`limit`] has set, for [`release`].
pub fn project(directory: &Path) -> io::Result<Option<u32>> {
    let directory = match open_directory(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        directory => directory?,
    };
    let attributes = supported(attributes(&directory))?;
    let ours = |attributes: &Attributes| attributes.flags & FS_XFLAG_PROJINHERIT != 0;
    Ok(attributes.filter(ours).map(|attributes| attributes.project).filter(|project| *project >= FIRST))
}

/// Forgets the limit of a project whose directory is gone; `beside` is any directory of that file system.
pub fn release(beside: &Path, project: u32) -> io::Result<()> {
    match set_limit(&open_directory(beside)?, project, 0) {
        Err(error) if is_unsupported(&error) => Ok(()),
        done => done,
    }
}

/// The first free number from a start that spreads directories over the range. `None` when none was found.
fn choose(start: u64, mut is_free: impl FnMut(u32) -> io::Result<bool>) -> io::Result<Option<u32>> {
    let first = u32::try_from(start % u64::from(NUMBERS)).unwrap_or(0);
    for step in 0..MOST_TRIES {
        let number = FIRST + (first + step) % NUMBERS;
        if is_free(number)? {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// The kernel's `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_on_write_extent_size: u32,
    padding: [u8; 8],
}

/// What the files of a project take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    bytes: u64,
    inodes: u64,
    limit: u64,
}

impl Usage {
    fn is_unused(self) -> bool {
        self == Usage::default()
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

fn is_empty(directory: &OwnedFd) -> io::Result<bool> {
    Ok(std::fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))?.next().is_none())
}

fn inode(directory: &OwnedFd) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::File::from(directory.try_clone()?).metadata()?.ino())
}

#[allow(unsafe_code)]
fn attributes(directory: &OwnedFd) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the request writes one `struct fsxattr`, which `Attributes` is laid out as, and the descriptor is open.
    let answer = unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_FSGETXATTR as _, &raw mut attributes) };
    Errno::result(answer)?;
    Ok(attributes)
}

#[allow(unsafe_code)]
fn set_attributes(directory: &OwnedFd, attributes: &Attributes) -> io::Result<()> {
    // SAFETY: the request reads one `struct fsxattr`, which `Attributes` is laid out as, and the descriptor is open.
    let answer =
        unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_FSSETXATTR as _, std::ptr::from_ref(attributes)) };
    Errno::result(answer)?;
    Ok(())
}

fn usage(directory: &OwnedFd, project: u32) -> io::Result<Usage> {
    let mut block = empty_block();
    match quota(directory, Q_GETQUOTA, project, &mut block) {
        // XFS keeps no record of a number before it is first used
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Usage::default()),
        Err(error) => Err(error),
        Ok(()) => {
            Ok(Usage { bytes: block.dqb_curspace, inodes: block.dqb_curinodes, limit: block.dqb_bhardlimit })
        }
    }
}

fn set_limit(directory: &OwnedFd, project: u32, bytes: u64) -> io::Result<()> {
    let mut block = empty_block();
    block.dqb_bhardlimit = bytes.div_ceil(BLOCK);
    block.dqb_valid = QIF_BLIMITS;
    quota(directory, Q_SETQUOTA, project, &mut block)
}

fn empty_block() -> libc::dqblk {
    libc::dqblk {
        dqb_bhardlimit: 0,
        dqb_bsoftlimit: 0,
        dqb_curspace: 0,
        dqb_ihardlimit: 0,
        dqb_isoftlimit: 0,
        dqb_curinodes: 0,
        dqb_btime: 0,
        dqb_itime: 0,
        dqb_valid: 0,
    }
}

#[allow(unsafe_code)]
fn quota(directory: impl AsFd, command: u32, project: u32, block: &mut libc::dqblk) -> io::Result<()> {
    let command = (command << 8) | PRJQUOTA;
    // SAFETY: both commands read or write one `struct if_dqblk`, which `dqblk` is, and the descriptor is open.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            directory.as_fd().as_raw_fd(),
            command,
            project,
            std::ptr::from_mut(block),
        )
    };
    Errno::result(answer)?;
    Ok(())
}

/// `None` for what this kernel or file system does not do.
fn supported<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if is_unsupported(&error) => Ok(None),
        result => result.map(Some),
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    // ESRCH: the file system has quotas, and they are off
    let codes = [libc::ENOTTY, libc::EOPNOTSUPP, libc::ENOSYS, libc::ESRCH, libc::EINVAL, libc::EPERM];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::mount;

    #[test]
    fn a_number_that_is_taken_is_passed_by() {
        let taken = |taken: &'static [u32]| move |number: u32| Ok(!taken.contains(&number));
        assert_eq!(choose(7, taken(&[])).unwrap(), Some(FIRST + 7));
        assert_eq!(choose(7, taken(&[FIRST + 7, FIRST + 8])).unwrap(), Some(FIRST + 9));
        assert_eq!(choose(u64::from(NUMBERS) - 1, taken(&[FIRST + NUMBERS - 1])).unwrap(), Some(FIRST));
        assert_eq!(choose(0, |_| Ok(false)).unwrap(), None);
        assert!(
            choose(0, |_| Err(io::Error::from_raw_os_error(libc::EIO))).is_err(),
            "not to know is no answer"
        );
    }

    #[test]
    fn a_file_system_without_quotas_says_so() {
        let directory = tempfile::tempdir().unwrap();
        if let Err(error) = mount::tmpfs(directory.path(), Some(1 << 20)) {
            return ferry_skip::missing(&format!("the right to mount: {error}"));
        }
        let limited = limit(directory.path(), 1 << 20);
        let project = project(directory.path());
        mount::unmount(directory.path()).unwrap();
        assert!(!limited.unwrap());
        assert_eq!(project.unwrap(), None);
    }

    #[test]
    fn a_directory_holds_no_more_than_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let (image, place) = (folder.path().join("image"), folder.path().join("place"));
        fs::create_dir(&place).unwrap();
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let run = |program: &str, words: &[&str]| {
            Command::new(program).args(words).output().is_ok_and(|output| output.status.success())
        };
        let (image, at) = (image.to_str().unwrap(), place.to_str().unwrap());
        let features = ["-q", "-O", "quota,project", "-E", "quotatype=prjquota", image];
        if !run("mkfs.ext4", &features) || !run("mount", &["-o", "loop,prjquota", image, at]) {
            return ferry_skip::unsupported("an ext4 with project quotas, on a loop device");
        }
        let volume = place.join("volume");
        let filled = (|| -> io::Result<_> {
            fs::create_dir(&volume)?;
            let limited = limit(&volume, 1 << 20)?;
            let full = fs::write(volume.join("file"), vec![1u8; 2 << 20]).map_err(|error| error.kind());
            fs::remove_file(volume.join("file"))?;
            let again = limit(&volume, 4 << 20)?;
            let grown = fs::write(volume.join("file"), vec![1u8; 2 << 20]);
            let space = crate::disk::space(&volume)?;
            let project = project(&volume)?;
            crate::tree::remove(&volume)?;
            if let Some(project) = project {
                release(&place, project)?;
            }
            // one that somebody filled before is not counted, and that is said
            fs::create_dir(place.join("other"))?;
            fs::write(place.join("other/file"), "")?;
            Ok((
                limited,
                full,
                again,
                grown.is_ok(),
                space.capacity_bytes,
                limit(&place.join("other"), 1 << 20)?,
            ))
        })();
        mount::unmount(&place).unwrap();
        let (limited, full, again, grown, capacity, other) = filled.unwrap();
        assert!(limited && again && grown && !other);
        assert!(matches!(full, Err(io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull)), "{full:?}");
        assert_eq!(capacity, 4 << 20, "statfs tells the limit");
    }
}
