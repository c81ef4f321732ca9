//! The folder that holds the workers' sockets. Only this user can enter it: whoever can connect to a worker
//! can read its requests. It goes with the launcher; one that a killed launcher left goes at the next start.

use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use tempfile::TempDir;

const PREFIX: &str = "penstock-";
/// Held by the launcher as long as it lives, whatever ends it.
const LOCK: &str = "lock";

/// Where the folder is made if the usual place is gone.
const LAST_RESORT: &str = "/tmp";

pub struct SocketFolder {
    parent: PathBuf,
    folder: TempDir,
    /// Device and inode: another folder of its name is not it.
    identity: (u64, u64),
    _lock: Flock<File>,
}

impl SocketFolder {
    pub fn make(parent: &Path) -> Result<Self, String> {
        // A socket's path holds 107 bytes at most (unix(7)); some runtime folders leave no room.
        let parent = if parent.as_os_str().len() > 60 { Path::new("/tmp") } else { parent };
        sweep(parent);
        Self::make_in(parent)
            .map_err(|error| format!("cannot make a folder for sockets in {}: {error}", parent.display()))
    }

    fn make_in(parent: &Path) -> std::io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)?;
        let found = folder.path().symlink_metadata()?;
        // It has its name once it is locked: a lock that nobody holds tells another launcher that the folder was left.
        let unlocked = folder.path().join("lock.new");
        let file = File::create(&unlocked)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)?;
        std::fs::rename(unlocked, folder.path().join(LOCK))?;
        let identity = (found.dev(), found.ino());
        Ok(Self { parent: parent.to_owned(), folder, identity, _lock: lock })
    }

    /// Makes a new one where this one is gone: what cleans up temporary files removes it. Whether it was.
    pub fn restore(&mut self) -> std::io::Result<bool> {
        let found = self.folder.path().symlink_metadata();
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            return Ok(false);
        }
        let new = Self::make_in(&self.parent).or_else(|_| Self::make_in(Path::new(LAST_RESORT)))?;
        // What has the old one's name now, if anything, is not ours to remove.
        std::mem::replace(self, new).folder.disable_cleanup(true);
        Ok(true)
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes what launchers left that could not clean up. A folder without a lock file is not ours to judge:
/// it may be just being made.
fn sweep(parent: &Path) {
    for entry in parent.read_dir().into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        let ours = path.symlink_metadata().is_ok_and(|found| {
            found.is_dir() && found.uid() == geteuid().as_raw() && found.permissions().mode() & 0o777 == 0o700
        });
        if let Some(file) = ours.then(|| File::open(path.join(LOCK)).ok()).flatten()
            && let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock)
        {
            // Another launcher may be sweeping, too.
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_folder_goes_with_its_owner_and_a_forgotten_one_at_the_next_start() {
        let parent = tempfile::tempdir().unwrap();
        let forgotten = parent.path().join("penstock-dead");
        std::fs::create_dir(&forgotten).unwrap();
        std::fs::set_permissions(&forgotten, Permissions::from_mode(0o700)).unwrap();
        std::fs::write(forgotten.join(LOCK), "").unwrap();
        let strange = parent.path().join("penstock-of-somebody");
        std::fs::create_dir(&strange).unwrap();

        let first = SocketFolder::make(parent.path()).unwrap();
        let second = SocketFolder::make(parent.path()).unwrap();
        assert!(!forgotten.exists() && strange.exists());
        assert!(first.path().exists() && second.path().exists());
        assert_eq!(first.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_that_is_being_made_is_not_taken_for_a_forgotten_one() {
        let parent = tempfile::tempdir().unwrap();
        let made = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !made.load(Ordering::Relaxed) {
                        sweep(parent.path());
                    }
                });
            }
            let kept =
                (0..2000).all(|_| SocketFolder::make_in(parent.path()).is_ok_and(|one| one.path().exists()));
            made.store(true, Ordering::Relaxed);
            assert!(kept);
        });
    }

    #[test]
    fn a_folder_that_was_removed_is_made_again_and_a_strange_one_in_its_place_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let mut folder = SocketFolder::make(parent.path()).unwrap();
        assert!(!folder.restore().unwrap(), "nothing was wrong with it");
        let first = folder.path().to_owned();
        std::fs::remove_dir_all(&first).unwrap();
        std::fs::create_dir(&first).unwrap();
        assert!(folder.restore().unwrap());
        assert_ne!(folder.path(), first);
        assert_eq!(folder.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(folder);
        assert!(first.exists());

        let mut folder = SocketFolder::make(parent.path()).unwrap();
        std::fs::remove_dir_all(parent.path()).unwrap();
        assert!(folder.restore().unwrap());
        assert!(folder.path().starts_with(LAST_RESORT));
    }
}
