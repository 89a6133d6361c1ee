//! Runs the binary as a process, and hosts started from it.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

/// The key of all hosts in these tests.
pub(crate) const KEY: &str = "key-of-the-tests-0123456789abcdef";
/// More than anything here takes on any machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The beginning of a tool server as a shell script: how it hears and answers, and its greeting.
pub(crate) const TOOL_SERVER: &str = r#"hear() {
    read -r line || exit 0
    id=$(printf '%s' "$line" | sed 's/^.*"id":\([0-9]*\).*$/\1/')
}
answer() {
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"
}
hear
answer '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}'
read -r line
"#;

/// A folder in which the binary is run.
#[derive(Debug)]
pub(crate) struct Place {
    folder: TempDir,
    env: Vec<(String, String)>,
}

/// The output and exit code of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            env: Vec::new(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Sets an environment variable for all further commands.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    /// Clears the environment of further commands, including server and key.
    pub(crate) fn without_server(mut self) -> Self {
        self.env.clear();
        self
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Creates a command that runs the binary in the folder.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wopr"));
        command.args(args).current_dir(self.path()).stdin(Stdio::null());
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("WOPR_") || text.starts_with("CARGO") {
                command.env_remove(&name);
            }
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command to completion.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Said {
        Said::of(self.command(args).output().unwrap())
    }

    /// Runs a command and requires an exit code.
    pub(crate) fn ends<S: AsRef<OsStr>>(&self, code: i32, args: &[S]) -> Said {
        let said = self.run(args);
        assert_eq!(said.code, code, "{said:#?}");
        said
    }

    /// Runs a command that must succeed and print JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        self.ends(0, args).json()
    }

    /// Starts a host with the examples on a store in the folder. Further commands use it.
    pub(crate) fn serve(&mut self) -> Host {
        self.serve_by(|command| command)
    }

    /// Starts a host like [`Place::serve`], after a command of the shell that sets limits.
    pub(crate) fn serve_limited(&mut self, limits: &str) -> Host {
        self.serve_by(|host| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]);
            shell.arg(host.get_program()).args(host.get_args());
            shell
                .current_dir(host.get_current_dir().unwrap())
                .stdin(Stdio::null());
            for (name, value) in host.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            shell
        })
    }

    fn serve_by(&mut self, wrap: impl FnOnce(Command) -> Command) -> Host {
        let examples = examples();
        let args = [
            "serve",
            "--while-stdin",
            "--listen",
            "127.0.0.1:0",
            "--store",
            "sqlite:wopr.db",
        ];
        let mut command = self.command(&args);
        command.arg("--workflows").arg(examples).env("WOPR_API_KEY", KEY);
        let host = Host::start(wrap(command));
        self.env
            .retain(|(name, _)| name != "WOPR_SERVER" && name != "WOPR_API_KEY");
        self.set("WOPR_SERVER", &host.origin);
        self.set("WOPR_API_KEY", KEY);
        host
    }
}

pub(crate) fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

impl Said {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// A running host; killed on drop.
#[derive(Debug)]
pub(crate) struct Host {
    child: Child,
    /// The startup line.
    pub(crate) line: Value,
    pub(crate) origin: String,
    logs: Option<thread::JoinHandle<String>>,
}

impl Host {
    /// Starts a host and waits for its startup line.
    pub(crate) fn start(mut command: Command) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let logs = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        let line = first_line(&mut child, |_| true);
        let Some(line) = line else {
            child.wait().unwrap();
            panic!("the host did not listen: {}", logs.join().unwrap());
        };
        let line: Value = serde_json::from_str(&line).unwrap();
        Self {
            origin: line["listening"].as_str().unwrap().to_owned(),
            child,
            line,
            logs: Some(logs),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for the process. Returns its exit status and log.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        (status, self.logs.take().unwrap().join().unwrap())
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Fails if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the first matching line of standard output, or `None`. Discards the rest.
pub(crate) fn first_line(
    child: &mut Child,
    wanted: impl Fn(&str) -> bool + Send + 'static,
) -> Option<String> {
    let stdout = child.stdout.take().unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut sender = Some(sender);
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.is_some() && wanted(&line) {
                // Fails if the test has stopped waiting.
                let _ = sender.take().unwrap().send(line);
            }
        }
    });
    receiver.recv_timeout(LIMIT).ok()
}

/// Waits for a process, with a timeout.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let pid = child.id();
    let (sender, receiver) = mpsc::channel::<()>();
    let guard = thread::spawn(move || {
        if receiver.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            signal(pid, "KILL");
        }
    });
    let status = child.wait().unwrap();
    drop(sender);
    guard.join().unwrap();
    status
}

/// Sends a signal. Returns `true` if the process exists.
pub(crate) fn signal(pid: u32, name: &str) -> bool {
    let mut kill = Command::new("kill");
    let kill = kill
        .args([format!("-{name}"), pid.to_string()])
        .stderr(Stdio::null());
    kill.status().unwrap().success()
}

pub(crate) fn members(document: &Value) -> Vec<&str> {
    document.as_object().unwrap().keys().map(String::as_str).collect()
}
