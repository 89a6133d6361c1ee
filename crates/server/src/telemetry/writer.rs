//! Writes the log on a thread of its own.
//!
//! Standard error may be a pipe that nobody reads, or a file on a full disk. So whoever logs puts a line into a queue
//! and goes on. Lines that find no room, or that cannot be written, are left out; once there is room again, a line says
//! how many there were.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd as _,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use tracing_subscriber::fmt::MakeWriter;

/// Lines in the queue. Lines of clients have a rate, so only a writer that has stopped meets this bound.
const MAX_LINES: usize = 4_096;
/// Bytes of a line. What is longer is cut; no line that the host means to write is.
const MAX_LINE: usize = 16 << 10;
/// How long a process that ends waits for its last lines.
const FLUSH: Duration = Duration::from_secs(1);
/// How often it looks for room meanwhile.
const PAUSE: Duration = Duration::from_millis(5);

/// The queue of the process.
static LOG: OnceLock<LogQueue> = OnceLock::new();

/// The queue of lines, to be written by one thread.
#[derive(Debug, Clone)]
pub(super) struct LogQueue {
    messages: SyncSender<Message>,
    left_out: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// All lines before it are to be written by then.
    Flush(SyncSender<()>),
}

impl LogQueue {
    /// Starts a thread that writes to standard error.
    pub(super) fn to_stderr() -> io::Result<Self> {
        // By a descriptor of its own, so that a write that blocks does not keep others from standard error.
        match io::stderr().as_fd().try_clone_to_owned() {
            Ok(own) => Self::start(File::from(own)),
            Err(_) => Self::start(io::stderr()),
        }
    }

    fn start(writer: impl Write + Send + 'static) -> io::Result<Self> {
        let (messages, received) = sync_channel(MAX_LINES);
        let left_out = Arc::<AtomicU64>::default();
        let queue = Self {
            messages,
            left_out: Arc::clone(&left_out),
        };
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_all(&received, writer, &left_out))?;
        Ok(queue)
    }

    /// Makes this the queue that [`flush`] flushes.
    pub(super) fn install(self) {
        // There is one subscriber, and so one queue.
        let _ = LOG.set(self);
    }

    fn flush(&self, most: Duration) {
        let until = Instant::now() + most;
        let (written, is_written) = sync_channel(1);
        let mut message = Message::Flush(written);
        while let Err(TrySendError::Full(back)) = self.messages.try_send(message) {
            if Instant::now() >= until {
                return;
            }
            message = back;
            thread::sleep(PAUSE);
        }
        let left = until.saturating_duration_since(Instant::now());
        // A writer that has stopped does not keep the process from its end.
        let _ = is_written.recv_timeout(left);
    }
}

/// Waits until the lines logged so far are written, a second at most.
pub fn flush() {
    if let Some(queue) = LOG.get() {
        queue.flush(FLUSH);
    }
}

fn write_all(received: &Receiver<Message>, mut writer: impl Write, left_out: &AtomicU64) {
    for message in received {
        match message {
            Message::Line(line) => {
                if writer.write_all(&line).is_err() {
                    left_out.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let lost = left_out.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    tracing::warn!(
                        left_out = lost,
                        "lines of the log left out: they could not be written"
                    );
                }
            }
            Message::Flush(written) => {
                let _ = writer.flush();
                let _ = written.try_send(());
            }
        }
    }
}

impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut kept = line.get(..MAX_LINE).unwrap_or(line).to_vec();
        if kept.len() < line.len() {
            kept.push(b'\n');
        }
        if self.messages.try_send(Message::Line(kept)).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::{Condvar, Mutex};
    use tracing::{info, subscriber::with_default};
    use tracing_subscriber::fmt;

    use super::*;

    /// A file that takes nothing, or blocks, until it is told otherwise.
    #[derive(Clone, Default)]
    struct Disk(Arc<(Mutex<State>, Condvar)>);

    #[derive(Default)]
    struct State {
        is_full: bool,
        is_stuck: bool,
        text: Vec<u8>,
    }

    impl Disk {
        fn set(&self, is_full: bool, is_stuck: bool) {
            let (state, changed) = &*self.0;
            let mut state = state.lock();
            (state.is_full, state.is_stuck) = (is_full, is_stuck);
            changed.notify_all();
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.0.lock().text.clone()).unwrap()
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (state, changed) = &*self.0;
            let mut state = state.lock();
            while state.is_stuck {
                changed.wait(&mut state);
            }
            if state.is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            state.text.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_left_out_and_counted() {
        let disk = Disk::default();
        let queue = LogQueue::start(disk.clone()).unwrap();
        with_default(fmt().with_writer(queue.clone()).finish(), || {
            disk.set(true, false);
            info!("lost-1");
            info!("lost-2");
            queue.flush(FLUSH);
            disk.set(false, false);
            info!("kept-1");
            queue.flush(FLUSH);
        });
        let text = disk.text();
        assert!(text.contains("kept-1") && !text.contains("lost"), "{text}");
        assert_eq!(queue.left_out.load(Ordering::Relaxed), 0, "it was told");
    }

    #[test]
    fn a_writer_that_has_stopped_holds_up_nobody() {
        let disk = Disk::default();
        disk.set(false, true);
        let queue = LogQueue::start(disk.clone()).unwrap();
        with_default(fmt().with_writer(queue.clone()).finish(), || {
            for n in 0..2 * MAX_LINES {
                info!(n, "line");
            }
        });
        assert!(queue.left_out.load(Ordering::Relaxed) >= MAX_LINES as u64 - 1);
        queue.flush(PAUSE);
        disk.set(false, false);
        queue.flush(FLUSH * 30);
        assert!(disk.text().lines().count() >= MAX_LINES);
    }

    #[test]
    fn a_long_line_is_cut() {
        let disk = Disk::default();
        let queue = LogQueue::start(disk.clone()).unwrap();
        let n = (&queue).write(&[b'x'; 2 * MAX_LINE]).unwrap();
        queue.flush(FLUSH * 30);
        assert_eq!((n, disk.text().len()), (2 * MAX_LINE, MAX_LINE + 1));
    }
}
