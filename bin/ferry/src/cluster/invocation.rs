//! The command line by which the user called this program, for hints on what to type next.

use std::path::{Path, PathBuf};

use super::layout::{DEFAULT_DATA_DIR, Layout};

pub struct Invocation {
    /// Its name where a shell finds it, else its path.
    pub program: String,
    /// Where the path leads that is not in PATH.
    pub outside_path: Option<PathBuf>,
    /// The option that names the cluster; empty for the one that is meant without.
    cluster: String,
    kubeconfig: PathBuf,
}

/// Of this program, for this cluster.
pub fn ferry(layout: &Layout) -> Invocation {
    let own = std::env::current_exe().unwrap_or_else(|_| "ferry".into());
    let directories = std::env::var_os("PATH");
    let directories = directories.iter().flat_map(std::env::split_paths);
    of(&own, directories, layout)
}

fn of(own: &Path, mut directories: impl Iterator<Item = PathBuf>, layout: &Layout) -> Invocation {
    let name = own.file_name().unwrap_or(own.as_os_str());
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_found = directories.any(|directory| real(&directory.join(name)) == real(own));
    let is_default = layout.data_dir == Path::new(DEFAULT_DATA_DIR);
    Invocation {
        program: if is_found { name.to_string_lossy().into_owned() } else { own.display().to_string() },
        outside_path: own.parent().filter(|_| !is_found).map(Path::to_owned),
        cluster: match is_default {
            true => String::new(),
            false => format!(" --data-dir {}", layout.data_dir.display()),
        },
        kubeconfig: layout.admin_kubeconfig(),
    }
}

impl Invocation {
    /// `ferry status`, for this cluster.
    pub fn command(&self, words: &str) -> String {
        format!("{} {words}{}", self.program, self.cluster)
    }

    /// `ferry kubectl`, for this cluster as its administrator.
    pub fn kubectl(&self) -> String {
        match self.cluster.is_empty() {
            true => format!("{} kubectl", self.program),
            false => format!("{} kubectl --kubeconfig {}", self.program, self.kubeconfig.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_called_by_its_name_where_shells_find_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let own = folder.join("ferry");
        std::fs::write(&own, "").unwrap();
        let default = Layout::of(Path::new(DEFAULT_DATA_DIR)).unwrap();
        let found = of(&own, [PathBuf::from("/nowhere"), folder.clone()].into_iter(), &default);
        assert_eq!((found.command("status").as_str(), found.outside_path), ("ferry status", None));

        // Another program of that name is not this one.
        let other = tempfile::tempdir().unwrap();
        std::fs::write(other.path().join("ferry"), "").unwrap();
        let layout = Layout::of(Path::new("/srv/a")).unwrap();
        let found = of(&own, [other.path().to_owned()].into_iter(), &layout);
        assert_eq!(found.outside_path.as_ref(), Some(&folder));
        assert_eq!(found.command("down"), format!("{} down --data-dir /srv/a", own.display()));
        let kubectl = format!("{} kubectl --kubeconfig /srv/a/admin.kubeconfig", own.display());
        assert_eq!(found.kubectl(), kubectl);
    }
}
