//! Counts the frames of HTTP/2 that a client sends (RFC 9113 section 4.1), without reading them.
//!
//! A frame that begins no request costs the host work all the same: a ping and settings are answered. The library
//! that reads them has no bound for them, so they are counted here and paid for in [`super::pace`].

/// Length of the client's preface, which is sent before its first frame.
const PREFACE: u32 = 24;
/// Length of a frame's header, which begins with three bytes of the length of what follows it.
const HEADER: usize = 9;

/// Where in its frames a client is.
#[derive(Debug)]
pub(super) struct Frames {
    /// What is left of the preface or of the last frame's payload.
    to_skip: u32,
    header: [u8; HEADER],
    /// How much of the header was sent.
    n_header: usize,
}

impl Frames {
    pub(super) const fn new() -> Self {
        Self {
            to_skip: PREFACE,
            header: [0; HEADER],
            n_header: 0,
        }
    }

    /// Returns the number of headers that end within these bytes, the next that the client sent.
    pub(super) fn count(&mut self, mut bytes: &[u8]) -> usize {
        let mut n_frames = 0;
        while !bytes.is_empty() {
            let skipped = bytes.len().min(self.to_skip as usize);
            bytes = &bytes[skipped..];
            // At most `to_skip`.
            self.to_skip -= skipped as u32;
            let taken = bytes.len().min(HEADER - self.n_header);
            self.header[self.n_header..][..taken].copy_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            self.n_header += taken;
            if self.n_header == HEADER {
                let [high, middle, low, ..] = self.header;
                self.to_skip = u32::from_be_bytes([0, high, middle, low]);
                self.n_header = 0;
                n_frames += 1;
            }
        }
        n_frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, 6, 0, 0, 0, 0, 0];
        frame.resize(HEADER + usize::from(length), 0xff);
        frame
    }

    #[test]
    fn frames_are_counted_however_they_are_cut() {
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for length in [0, 8, 5, 0, 255] {
            sent.extend(frame(length));
        }
        for size in 1..=sent.len() {
            let mut frames = Frames::new();
            let n_frames: usize = sent.chunks(size).map(|piece| frames.count(piece)).sum();
            assert_eq!(n_frames, 5, "in pieces of {size} bytes");
        }
    }
}
