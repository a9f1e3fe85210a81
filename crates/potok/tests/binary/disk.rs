//! The disk of `shim/disk.c`: forgets what was never synced, and can be full.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::process::{Home, Running, SMALL_SEGMENTS, pipelines, without_settings};

/// A folder on such a disk.
pub struct Disk {
    shadow: TempDir,
}

/// The shim, compiled once per run.
fn shim() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, file) = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/binary/shim/disk.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&file, &source])
            .args(["-ldl", "-lpthread"])
            .status()
            .expect("cc starts");
        assert!(built.success(), "the shim compiles");
        (dir, file)
    });
    file
}

impl Disk {
    /// An empty disk for `home`, which must not have run yet.
    pub fn under(home: &Home) -> Self {
        let disk = Disk { shadow: tempfile::tempdir().unwrap() };
        // The folder itself was made by someone else and is there to stay.
        assert_eq!(fs::read_dir(home.data()).unwrap().count(), 0);
        disk
    }

    /// Starts `orders` of `home` on this disk.
    pub fn start(&self, home: &Home, environment: &[(&str, &str)]) -> Result<Running, String> {
        self.start_file(home, &pipelines().join("orders.yaml"), environment)
    }

    /// Starts another pipeline on it.
    pub fn start_file(
        &self,
        home: &Home,
        file: &Path,
        environment: &[(&str, &str)],
    ) -> Result<Running, String> {
        let data = home.data();
        let mut all = vec![
            SMALL_SEGMENTS,
            ("LD_PRELOAD", shim().to_str().unwrap()),
            ("DISK_DIR", data.to_str().unwrap()),
            ("DISK_SHADOW", self.shadow.path().to_str().unwrap()),
        ];
        all.extend(environment);
        home.start_file(file, &all)
    }

    /// From now on no sync completes.
    pub fn power_off(&self) {
        fs::write(self.shadow.path().join("off"), "").unwrap();
    }

    /// Whether nothing more fits.
    pub fn set_full(&self, full: bool) {
        let flag = self.shadow.path().join("full");
        if full { fs::write(flag, "").unwrap() } else { fs::remove_file(flag).unwrap() }
    }

    /// Replaces the folder by what the disk remembers, once the process is dead.
    pub fn power_on(&self, home: &Home) {
        let _ = fs::remove_file(self.shadow.path().join("off"));
        fs::remove_dir_all(home.data()).unwrap();
        fs::create_dir(home.data()).unwrap();
        let mut kept = Vec::new();
        self.restore(&home.data(), "", &mut kept);
        // Files come back with other inodes: the shadow must know them by those.
        for entry in fs::read_dir(self.shadow.path()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for folder in kept.iter().rev() {
            self.remember(&home.data(), folder);
        }
    }

    /// Puts back one folder from its last synced list of entries.
    fn restore(&self, data: &Path, folder: &str, kept: &mut Vec<String>) {
        kept.push(folder.to_owned());
        let list = self.shadow.path().join(format!("d.{}", folder.replace('/', "%")));
        for line in fs::read_to_string(list).unwrap_or_default().lines() {
            let mut parts = line.splitn(3, ' ');
            let (kind, id, name) =
                (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
            let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
            if kind == "d" {
                fs::create_dir(data.join(&path)).unwrap();
                self.restore(data, &path, kept);
            } else {
                // A name without content: the file was never synced.
                let content = fs::read(self.shadow.path().join(format!("i.{id}")));
                fs::write(data.join(&path), content.unwrap_or_default()).unwrap();
            }
        }
    }

    /// Notes a folder and its files as durable, in the form the shim writes.
    fn remember(&self, data: &Path, folder: &str) {
        use std::os::unix::fs::MetadataExt;
        let mut list = String::new();
        for entry in fs::read_dir(data.join(folder)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                list.push_str(&format!("d - {name}\n"));
                continue;
            }
            let born = meta.created().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
            let id = format!("{}.{}-{}", meta.ino(), born.as_secs(), born.subsec_nanos());
            fs::copy(entry.path(), self.shadow.path().join(format!("i.{id}"))).unwrap();
            list.push_str(&format!("f {id} {name}\n"));
        }
        let file = self.shadow.path().join(format!("d.{}", folder.replace('/', "%")));
        fs::write(file, list).unwrap();
    }
}

/// A disk with little room, in memory, that only one process sees and that goes with it.
pub struct SmallDisk<'a> {
    home: &'a Home,
    size: &'a str,
}

impl<'a> SmallDisk<'a> {
    /// Of so many bytes, such as `40m`.
    pub fn under(home: &'a Home, size: &'a str) -> Self {
        SmallDisk { home, size }
    }

    /// Starts a pipeline on it.
    pub fn start(&self, file: &Path, environment: &[(&str, &str)]) -> Running {
        let data = self.home.data();
        let mount = "mount -t tmpfs -o size=\"$0\" tmpfs \"$1\" && shift && exec \"$@\"";
        let mut command = without_settings("unshare");
        // Whoever is root may not have to become root, and sometimes must not.
        if may_be_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "sh", "-c", mount, self.size]).arg(&data);
        command.args([env!("CARGO_BIN_EXE_potok"), "run"]).arg(file).arg("--data-dir").arg(&data);
        command.args(["--admin", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        command.current_dir(self.home.path()).envs(environment.iter().copied());
        let running = Running::spawn(command, self.home.path().join("stderr.log"));
        // Its folder is another one than ours.
        let inside = format!("/proc/{}/root{}", running.pid(), data.display());
        let running = running.listening(Path::new(&inside)).and_then(Running::ready);
        running.unwrap_or_else(|end| panic!("potok ended at start: {end}"))
    }
}

/// True where a process may have users of its own.
fn may_be_root() -> bool {
    let tried = Command::new("unshare").args(["--user", "--map-root-user", "true"]).status();
    tried.is_ok_and(|status| status.success())
}
