//! The lines of a child's output, each of bounded length: a child that prints without end, and without a line
//! break, costs no memory. Used by `child` and `json_subprocess`.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// Bytes of a line that are kept; the rest of it is read and dropped.
pub const LONGEST_LINE: usize = 64 << 10;

pub struct Lines<R> {
    pipe: BufReader<R>,
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub fn of(pipe: R) -> Self {
        Self { pipe: BufReader::with_capacity(LONGEST_LINE, pipe), line: Vec::new() }
    }

    /// The next line without its end, which says how much of it was left out; `None` when the pipe is closed or
    /// broken. Must not be dropped half way.
    pub async fn next(&mut self) -> Option<&[u8]> {
        self.line.clear();
        let (mut read, mut left_out) = (0, 0);
        loop {
            let Ok(some) = self.pipe.fill_buf().await else { return None };
            if some.is_empty() && read == 0 {
                return None;
            }
            let end = some.iter().position(|byte| *byte == b'\n');
            let part = &some[..end.unwrap_or(some.len())];
            let kept = part.len().min(LONGEST_LINE - self.line.len());
            self.line.extend_from_slice(&part[..kept]);
            left_out += part.len() - kept;
            let used = part.len() + usize::from(end.is_some());
            read += used;
            // An empty buffer is the end of the pipe, and of a last line without a line break.
            let whole = end.is_some() || some.is_empty();
            self.pipe.consume(used);
            if whole {
                break;
            }
        }
        if left_out > 0 {
            self.line.extend_from_slice(format!("... and {left_out} bytes more").as_bytes());
        }
        Some(&self.line)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn lines_come_whole_and_the_last_one_needs_no_line_break() {
        let mut lines = Lines::of(&b"one\n\ntwo"[..]);
        for expected in ["one", "", "two"] {
            assert_eq!(lines.next().await, Some(expected.as_bytes()));
        }
        assert_eq!(lines.next().await, None);
    }

    #[tokio::test]
    async fn an_endless_line_is_cut_and_the_next_one_is_whole() {
        let endless = tokio::io::repeat(b'x').take(100 << 20).chain(&b"\nnext\n"[..]);
        let mut lines = Lines::of(endless);
        let line = lines.next().await.unwrap();
        let more = (100 << 20) - LONGEST_LINE;
        assert!(line.starts_with(&[b'x'; LONGEST_LINE]));
        assert_eq!(&line[LONGEST_LINE..], format!("... and {more} bytes more").as_bytes());
        assert!(lines.line.capacity() < 3 * LONGEST_LINE, "{} bytes are held", lines.line.capacity());
        assert_eq!(lines.next().await, Some(&b"next"[..]));
    }
}
