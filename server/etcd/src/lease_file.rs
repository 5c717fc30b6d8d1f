//! Which leases there are, in a file beside the store: a lease is no key, and granting one makes no revision.
//!
//! One line each, appended: `ID SECONDS` for a lease granted, `ID -` for one that has ended. When most lines are of
//! leases that have ended, the file is written anew; so it is when a line could not be written whole.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Lines of ended leases that are not worth writing the file anew.
const WASTE: usize = 1000;

pub struct LeaseFile {
    /// `None`: leases end with the process.
    path: Option<PathBuf>,
    /// `None` where the file may end in the middle of a line: it is written anew before anything is added.
    file: Option<File>,
    sync: bool,
    leases: BTreeMap<i64, i64>,
    lines: usize,
}

impl LeaseFile {
    /// Opens the file, and tells each lease with its seconds.
    pub fn open(path: Option<&Path>, sync: bool) -> io::Result<(Self, Vec<(i64, i64)>)> {
        let mut opened = LeaseFile {
            path: path.map(Path::to_path_buf),
            file: None,
            sync,
            leases: BTreeMap::new(),
            lines: 0,
        };
        if let Some(path) = path {
            let text = match std::fs::read_to_string(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                read => read?,
            };
            // A line without an end was being written when the process ended; nobody was told of that lease.
            for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
                opened.read(line).ok_or_else(|| {
                    let words = format!("{}: {line:?} is no lease", path.display());
                    io::Error::new(io::ErrorKind::InvalidData, words)
                })?;
            }
            opened.rewrite(path)?;
        }
        let granted = opened.leases.iter().map(|(id, seconds)| (*id, *seconds)).collect();
        Ok((opened, granted))
    }

    fn read(&mut self, line: &str) -> Option<()> {
        let (id, seconds) = line.split_once(' ')?;
        let id = id.parse().ok()?;
        match seconds {
            "-" => self.leases.remove(&id),
            seconds => self.leases.insert(id, seconds.parse().ok()?),
        };
        Some(())
    }

    /// Notes a lease, or the end of one.
    pub fn record(&mut self, id: i64, seconds: Option<i64>) -> io::Result<()> {
        let line = match seconds {
            Some(seconds) => format!("{id} {seconds}\n"),
            None => format!("{id} -\n"),
        };
        if let Some(path) = self.path.clone() {
            if self.file.is_none() || self.lines > 2 * self.leases.len() + WASTE {
                self.rewrite(&path)?;
            }
            // Where this fails, a part of the line may be in the file, and what came behind it would be no line.
            if let Some(mut file) = self.file.take() {
                file.write_all(line.as_bytes())?;
                if self.sync {
                    file.sync_data()?;
                }
                self.file = Some(file);
            }
        }
        match seconds {
            Some(seconds) => self.leases.insert(id, seconds),
            None => self.leases.remove(&id),
        };
        self.lines += 1;
        Ok(())
    }

    fn rewrite(&mut self, path: &Path) -> io::Result<()> {
        let partial = path.with_extension("part");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        let lines: String = self.leases.iter().map(|(id, seconds)| format!("{id} {seconds}\n")).collect();
        file.write_all(lines.as_bytes())?;
        if self.sync {
            file.sync_all()?;
        }
        std::fs::rename(&partial, path)?;
        if self.sync
            && let Some(directory) = path.parent()
        {
            File::open(directory)?.sync_all()?;
        }
        self.lines = self.leases.len();
        self.file = Some(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(path: &Path) -> Vec<(i64, i64)> {
        LeaseFile::open(Some(path), true).expect("a file of leases").1
    }

    #[test]
    fn leases_survive_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases");
        // Four thousand syncs would take their time.
        let (mut file, none) = LeaseFile::open(Some(&path), false).unwrap();
        assert_eq!(none, []);
        for id in 1..=2000 {
            file.record(id, Some(60)).unwrap();
        }
        for id in 1..2000 {
            file.record(id, None).unwrap();
        }
        assert_eq!(granted(&path), [(2000, 60)]);
        assert!(std::fs::metadata(&path).unwrap().len() < 100, "ended leases are cleared away");
    }

    #[test]
    fn a_disk_that_was_full_costs_what_could_not_be_written_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases");
        let (mut file, _) = LeaseFile::open(Some(&path), true).unwrap();
        file.record(1, Some(60)).unwrap();
        // Half a line is written, then the disk is full.
        std::fs::write(&path, "1 60\n2 6").unwrap();
        file.file = Some(OpenOptions::new().write(true).open("/dev/full").unwrap());
        file.record(2, Some(60)).unwrap_err();
        assert_eq!(granted(&path), [(1, 60)]);
        file.record(3, Some(60)).unwrap();
        assert_eq!(granted(&path), [(1, 60), (3, 60)]);
    }

    #[test]
    fn a_file_that_cannot_be_written_anew_is_no_file_that_need_not_be_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases");
        let (mut file, _) = LeaseFile::open(Some(&path), false).unwrap();
        // Nothing can be made where the new file is to be.
        let partial = path.with_extension("part");
        std::fs::create_dir(&partial).unwrap();
        let noted = (0..4000).take_while(|id| file.record(*id, None).is_ok()).count();
        assert!(noted < 4000, "it is time for a new file");
        file.record(5000, Some(60)).unwrap_err();
        std::fs::remove_dir(&partial).unwrap();
        file.record(5001, Some(60)).unwrap();
        assert_eq!(granted(&path), [(5001, 60)]);
    }

    #[test]
    fn a_line_cut_short_is_dropped_and_a_wrong_one_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases");
        std::fs::write(&path, "7 60\n8 6").unwrap();
        assert_eq!(granted(&path), [(7, 60)]);
        std::fs::write(&path, "seven 60\n").unwrap();
        assert!(LeaseFile::open(Some(&path), true).is_err());
    }
}
