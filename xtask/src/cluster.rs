//! A PostgreSQL server that is made for somebody and thrown away after them.
//!
//! It listens on a socket in a folder of its own and on no port, so it meets no other server and nobody else
//! reaches it. It syncs like any other: tests are to meet the real thing. PostgreSQL refuses to run as root, so
//! for root it runs as `postgres` or `nobody`.
//!
//! The chaos tests compile this file too, to have a server they may restart, so it uses nothing else of this crate.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};

/// The oldest version wopr works with.
pub(crate) const OLDEST: u32 = 14;
/// The first version that can be told to compare text as people do, which no test may depend on.
const WITH_LOCALE_PROVIDER: u32 = 15;
/// Where Debian keeps each version's programs.
const DEBIAN: &str = "/usr/lib/postgresql";
/// Who runs the server where we are root.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// How long a server may take to start.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is asked meanwhile.
const PAUSE: Duration = Duration::from_millis(50);

/// One version's programs.
pub(crate) struct Programs {
    pub(crate) folder: PathBuf,
    pub(crate) version: u32,
}

impl Programs {
    /// The newest there is, Debian's or those on the path.
    pub(crate) fn find() -> Option<Self> {
        let debian = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
        let on_path = read(Command::new("pg_config").arg("--bindir"));
        debian
            .map(|version| version.path().join("bin"))
            .chain(on_path.map(|folder| PathBuf::from(folder.trim())))
            .filter_map(Self::in_folder)
            .max_by_key(|programs| programs.version)
    }

    fn in_folder(folder: PathBuf) -> Option<Self> {
        let all = ["initdb", "pg_ctl", "pg_isready", "postgres"];
        if !all.iter().all(|program| folder.join(program).is_file()) {
            return None;
        }
        let said = read(Command::new(folder.join("postgres")).arg("--version")).ok()?;
        let version = parse_version(&said).filter(|version| *version >= OLDEST)?;
        Some(Self { folder, version })
    }
}

fn parse_version(said: &str) -> Option<u32> {
    let number = said.trim().strip_prefix("postgres (PostgreSQL) ")?;
    let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// A user the server may run as.
struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// Who can run the server where we are root.
    fn instead_of_root() -> Result<Self> {
        let number = |option: &str, name: &str| -> Option<u32> {
            read(Command::new("id").args([option, name]))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let user = USERS.iter().find_map(|name| {
            Some(Self {
                uid: number("-u", name)?,
                gid: number("-g", name)?,
            })
        });
        user.with_context(|| format!("find a user to run PostgreSQL as, one of {USERS:?}"))
    }
}

/// A running server and its files. Dropping stops it and removes everything it wrote.
pub(crate) struct Cluster {
    programs: Programs,
    user: Option<User>,
    folder: PathBuf,
    postmaster: Option<Child>,
}

impl Cluster {
    /// Makes a cluster, starts its server and waits until it takes connections.
    pub(crate) fn start(programs: Programs) -> Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Short, because the name of a socket has hardly more than a hundred characters.
        let name = format!("wopr-pg-{}-{:08x}", std::process::id(), since.subsec_nanos());
        let folder = std::env::temp_dir().join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("make {}", folder.display()))?;
        // From here on dropping cleans up.
        let mut cluster = Self {
            programs,
            user: None,
            folder,
            postmaster: None,
        };
        let folder = fs::metadata(&cluster.folder).context("look at the folder just made")?;
        // It belongs to us.
        let is_root = folder.uid() == 0;
        if is_root {
            let User { uid, gid } = *cluster.user.insert(User::instead_of_root()?);
            chown(&cluster.folder, Some(uid), Some(gid))
                .with_context(|| format!("hand over {}", cluster.folder.display()))?;
        }
        cluster.init()?;
        cluster.launch()?;
        cluster.wait()?;
        Ok(cluster)
    }

    /// Where clients find it; its user is `wopr`.
    pub(crate) fn url(&self) -> String {
        let socket = self.folder.to_string_lossy().replace('/', "%2F");
        format!("postgres://wopr@{socket}/postgres")
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// What the server has to say, over every start.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// One of the programs, as the server's user.
    fn command(&self, program: &str, dies_with_us: bool) -> Command {
        let program = self.programs.folder.join(program);
        let mut command = Command::new("setpriv");
        if dies_with_us {
            // A fast shutdown, should this process be killed.
            command.arg("--pdeathsig=INT");
        }
        match &self.user {
            Some(User { uid, gid }) => {
                command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
                command.arg("--clear-groups").arg(program);
            }
            // Only Linux has it; elsewhere the server outlives a killed test run.
            None if dies_with_us && cfg!(target_os = "linux") => {
                command.arg(program);
            }
            None => command = Command::new(program),
        }
        // Ours may be closed to it.
        command.current_dir(&self.folder);
        command
    }

    fn init(&self) -> Result<()> {
        let mut command = self.command("initdb", false);
        command.args(["--username=wopr", "--auth=trust", "--encoding=UTF8", "--pgdata"]);
        command.arg(self.data());
        if self.programs.version >= WITH_LOCALE_PROVIDER {
            command.args(["--locale=C", "--locale-provider=icu", "--icu-locale=en"]);
        } else {
            command.arg("--locale=C");
        }
        read(&mut command).context("make a PostgreSQL cluster")?;
        Ok(())
    }

    /// Starts the server and does not wait for it.
    pub(crate) fn launch(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.context("open the server's log")?;
        let mut socket = OsString::from("unix_socket_directories=");
        socket.push(&self.folder);
        let mut command = self.command("postgres", true);
        command.arg("-D").arg(self.data());
        for setting in ["listen_addresses=", "max_connections=200"] {
            command.args(["-c", setting]);
        }
        command.arg("-c").arg(socket);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("share the server's log")?)
            .stderr(log);
        self.postmaster = Some(command.spawn().context("start PostgreSQL")?);
        Ok(())
    }

    /// Waits until the server takes connections.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut ask = self.command("pg_isready", false);
            ask.arg("--quiet").arg("--host").arg(&self.folder);
            if read(&mut ask).is_ok() {
                return Ok(());
            }
            let ended = match &mut self.postmaster {
                Some(postmaster) => postmaster.try_wait().context("look after PostgreSQL")?,
                None => None,
            };
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                bail!("start PostgreSQL; its log says:\n{}", log.trim());
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Cluster {
    /// Stops the server the way `pg_ctl` calls `mode`, and waits until it has: `immediate` as a crash would, without
    /// a checkpoint, `fast` in order but without waiting for clients.
    pub(crate) fn stop(&mut self, mode: &str) -> Result<()> {
        let Some(mut postmaster) = self.postmaster.take() else {
            return Ok(());
        };
        let mut stop = self.command("pg_ctl", false);
        stop.args(["stop", "--silent", "--mode", mode, "--pgdata"])
            .arg(self.data());
        let stopped = read(&mut stop);
        if stopped.is_err() {
            // It may be gone already; if not, its children notice.
            let _ = postmaster.kill();
        }
        postmaster.wait().context("wait for the end of PostgreSQL")?;
        stopped.context("stop PostgreSQL")?;
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for ended in [self.stop("immediate"), remove(&self.folder)] {
            if let Err(error) = ended {
                println!("{error:#}");
            }
        }
    }
}

/// Runs to success, for what it prints.
fn read(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("start {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} ended with {}: {}", output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("read what {name} printed"))
}

fn remove(folder: &Path) -> Result<()> {
    fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_its_first_number() {
        assert_eq!(
            parse_version("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"),
            Some(15)
        );
        assert_eq!(parse_version("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(parse_version("postgres (EnterpriseDB) 9.6"), None);
    }
}
