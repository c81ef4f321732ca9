//! Logging of the whole server: one line for each event on standard output, as text or JSON, and the lines
//! of child processes in the same form. Set up once by `main`. `log_writer` writes them.

use std::fmt::{self, Debug, Write};
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;
use serde::Deserialize;
use serde_json::{Map, Value};
use tracing::field::Field;
use tracing::{Level, debug, error, info, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{self, Writer};

use crate::environment::Environment;
use crate::log_writer::LogWriter;

/// How long nobody may take a line of the log before the process ends without it.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same within a panic, behind which this thread goes on if it was not the last one.
const PATIENCE_OF_A_PANIC: Duration = Duration::from_millis(100);

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// One JSON object for each log line
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    pub json_output: bool,
    /// error, warn, info, debug, trace, off, or a filter by crate such as `info,penstock_core=debug`
    #[arg(long, env, default_value = "info", value_parser = parse_level)]
    pub log_level: String,
}

/// The log of this process, to be kept until it ends. Dropped, it waits until its lines are written.
pub struct Log {
    writer: LogWriter,
    is_json: bool,
}

impl Drop for Log {
    fn drop(&mut self) {
        self.writer.wait_until_written(PATIENCE);
    }
}

pub fn start(args: &LogArgs, environment: &Environment) -> Result<Log, String> {
    let filter = EnvFilter::builder()
        .parse(directives(&args.log_level))
        .map_err(|error| format!("--log-level '{}': {error}", args.log_level))?;
    let writer = LogWriter::start(io::stdout(), tell_of_lost_lines)
        .map_err(|error| format!("the log cannot be written: {error}"))?;
    let show_target = filter.max_level_hint().is_some_and(|level| level >= Level::DEBUG);
    // Its own errors, it would print to standard error, and panic where that is closed: in the panic hook, too, which ends the process.
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_target(show_target).log_internal_errors(false);
    let own = writer.clone();
    if args.json_output {
        let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
        lines.with_writer(move || EscapedJson(own.clone())).init();
    } else {
        let ansi = environment.stdout_is_terminal && !environment.no_color;
        let fields = format::debug_fn(write_field).delimited(" ");
        lines.compact().with_ansi(ansi).fmt_fields(fields).with_writer(move || own.clone()).init();
    }
    // Otherwise a panic writes what it likes to standard error: a text that it could not cut, for one.
    let own = writer.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload().downcast_ref::<&str>().copied();
        let message = message.or_else(|| panic.payload().downcast_ref::<String>().map(String::as_str));
        error!("panicked at {place}: {}", message.unwrap_or("without a message"));
        // It may be about to end the process.
        own.wait_until_written(PATIENCE_OF_A_PANIC);
    }));
    Ok(Log { writer, is_json: args.json_output })
}

impl Log {
    /// Says why the process ends, behind all other lines. Where people read, it stands out on its own; where a machine does, it is an
    /// event, unless `--log-level` lets none through.
    pub fn fail(&self, line: &str) -> ExitCode {
        match self.is_json && tracing::enabled!(Level::ERROR) {
            true => error!("{line}"),
            false => {
                self.writer.wait_until_written(PATIENCE);
                tell_error(line);
            }
        }
        ExitCode::FAILURE
    }
}

fn tell_of_lost_lines(lines: u64) {
    warn!(lines, "lines of the log were lost, since nobody took them");
}

/// Says on standard error why the command ends, which it does even if nobody reads that.
pub fn tell_error(line: &str) {
    let line = format!("error: {line}\n");
    // Nothing is left to do where it cannot be written.
    if let Ok(mut writer) = LogWriter::start(io::stderr(), |_| ()) {
        let _ = writer.write_all(line.as_bytes());
        writer.wait_until_written(PATIENCE);
    } else {
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// One field of a line of text. What clients, models and libraries have put into it stays on this line and moves no
/// cursor: the one place that sees to it, whatever is logged where. In JSON, the format does.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(OneLine { writer, left: LONGEST_MESSAGE }, "{value:?}"),
        // Where a library said it; the line shows targets where they are wanted.
        name if name.starts_with("log.") => Ok(()),
        name => {
            write!(writer, "{}=", name.trim_start_matches("r#"))?;
            // Whoever asks for prompts in the log gets them whole.
            write!(OneLine { writer, left: usize::MAX }, "{value:?}")
        }
    }
}

/// Characters of a message. Texts that clients choose are fields, and are shortened where they are logged.
const LONGEST_MESSAGE: usize = 4096;

/// Writes what would end the line, move the cursor, or reorder it (controls, ANSI sequences, U+2028, overrides of the
/// writing direction) as Rust escapes it.
struct OneLine<'w, 's> {
    writer: &'w mut Writer<'s>,
    left: usize,
}

impl Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match self.left {
                0 => return Ok(()),
                1 => self.writer.write_str("...")?,
                _ if matches!(character, '\'' | '"' | '\\') => self.writer.write_char(character)?,
                _ => write!(self.writer, "{}", character.escape_debug())?,
            }
            self.left -= 1;
        }
        Ok(())
    }
}

/// Lines of JSON. Its format escapes ASCII's control characters; here the same is done for what else is not seen, as in
/// lines of text.
struct EscapedJson<W>(W);

impl<W: io::Write> io::Write for EscapedJson<W> {
    /// Takes a whole line, as the subscriber writes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let hidden = |c: char| !c.is_ascii() && c.escape_debug().len() > 1;
        match std::str::from_utf8(line) {
            Ok(text) if text.contains(hidden) => {
                // Such characters are in texts only, where JSON has an escape for each.
                let mut escaped = String::with_capacity(text.len() + 64);
                for c in text.chars() {
                    match hidden(c) {
                        true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                            let _ = write!(escaped, "\\u{unit:04x}");
                        }),
                        false => escaped.push(c),
                    }
                }
                self.0.write_all(escaped.as_bytes())?;
            }
            _ => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A value of --log-level. A filter of one word that is no level would be taken for the name of a module, and
/// everything else would be silent.
pub fn parse_level(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 7] = ["error", "warn", "warning", "info", "debug", "trace", "off"];
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let is_level = |word: &str| LEVELS.contains(&word.to_lowercase().as_str());
        let level = word.rsplit_once('=').map_or(word, |(_, level)| level.trim());
        if !is_level(level) {
            return Err(format!(
                "'{level}' is no level: it must be error, warn, info, debug, trace or off, or MODULE=LEVEL"
            ));
        }
    }
    EnvFilter::builder().parse(directives(text)).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

/// A bare level speaks of Penstock itself; libraries stay quieter. Anything else is a filter as it is.
fn directives(level: &str) -> String {
    match level.trim().to_lowercase().as_str() {
        "" => "warn,penstock=info".into(),
        "debug" => "info,penstock=debug".into(),
        bare @ ("info" | "warn" | "error" | "off") => format!("{},penstock={bare}", quieter(bare)),
        "warning" => "warn".into(),
        _ => level.into(),
    }
}

fn quieter(level: &str) -> &str {
    if level == "info" { "warn" } else { level }
}

const CHILD: &str = "penstock::worker";

/// One line that a child wrote: a JSON object with `level` and `message`, or whatever a library printed.
#[derive(Debug, PartialEq)]
pub enum ChildLine {
    Event {
        level: Level,
        message: String,
        /// It says why the child ends.
        fatal: bool,
        /// It tells how far something is that takes long.
        progress: bool,
        /// What was started is there, and takes connections.
        listening: bool,
        /// A router has connected, or has left.
        serving: Option<bool>,
    },
    Other(String),
}

impl ChildLine {
    pub fn parse(line: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Event {
            level: String,
            message: String,
            #[serde(default)]
            fatal: bool,
            #[serde(default)]
            progress: bool,
            #[serde(default)]
            listening: bool,
            serving: Option<bool>,
            #[serde(flatten)]
            more: Map<String, Value>,
        }
        let Ok(event) = serde_json::from_slice::<Event>(line) else {
            return ChildLine::Other(String::from_utf8_lossy(line).trim_end().to_owned());
        };
        let level = match event.level.to_lowercase().as_str() {
            "trace" | "debug" => Level::DEBUG,
            "warning" | "warn" => Level::WARN,
            "error" | "critical" | "fatal" => Level::ERROR,
            _ => Level::INFO,
        };
        let mut message = event.message;
        for (name, value) in
            event.more.iter().filter(|(name, _)| !matches!(name.as_str(), "timestamp" | "target"))
        {
            // Stack traces are for those who debug; the message says what happened.
            if matches!(name.as_str(), "trace" | "traceback" | "exception") {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text.lines().for_each(|line| debug!(target: CHILD, "{line}"));
            } else {
                message = format!("{message} {name}={value}");
            }
        }
        ChildLine::Event {
            level,
            message,
            fatal: event.fatal,
            progress: event.progress,
            listening: event.listening,
            serving: event.serving,
        }
    }

    /// What a worker tells of itself at level info is for those who debug: the router says the same of the
    /// whole group. How far loading is, only it knows. Why it ends is said once, by whoever makes out which of
    /// several explains the end of all.
    pub fn log_of_worker(self, rank: Option<u32>) {
        let who = rank.map(|rank| format!("worker {rank}: ")).unwrap_or_default();
        let named = match self {
            ChildLine::Event { level, message, fatal, progress, listening, serving } => {
                let told_elsewhere = fatal || level == Level::INFO && !progress;
                let level = if told_elsewhere { Level::DEBUG } else { level };
                ChildLine::Event { level, message: who + &message, fatal, progress, listening, serving }
            }
            ChildLine::Other(text) => ChildLine::Other(who + &text),
        };
        named.log();
    }

    pub fn log(&self) {
        match self {
            ChildLine::Event { level: Level::ERROR, message, .. } => error!(target: CHILD, "{message}"),
            ChildLine::Event { level: Level::WARN, message, .. } => warn!(target: CHILD, "{message}"),
            ChildLine::Event { level: Level::INFO, message, .. } => info!(target: CHILD, "{message}"),
            ChildLine::Event { message, .. } => debug!(target: CHILD, "{message}"),
            ChildLine::Other(text) => debug!(target: CHILD, "{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What is logged as text within `write`.
    fn logged(write: impl FnOnce()) -> String {
        #[derive(Clone, Default)]
        struct Kept(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Kept {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().expect("one thread").extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = tracing_subscriber::fmt()
            .compact()
            .with_ansi(false)
            .without_time()
            .fmt_fields(format::debug_fn(write_field).delimited(" "))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, write);
        let bytes = std::mem::take(&mut *kept.0.lock().expect("one thread"));
        String::from_utf8(bytes).expect("UTF-8")
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let hostile = "a\r\n2026-01-01 INFO forged\u{1b}[2K\u{2028}\u{202e}\u{85}\u{0}é\"\\";
        let escaped = r"a\r\n2026-01-01 INFO forged\u{1b}[2K\u{2028}\u{202e}\u{85}\0é";
        let line = logged(|| info!(field = hostile, shown = %hostile, number = 7, "{hostile}"));
        assert_eq!(line.matches('\n').count(), 1, "{line:?}");
        assert!(
            !line.trim_end().contains(|c: char| c.is_control() || "\u{2028}\u{202e}".contains(c)),
            "{line:?}"
        );
        let message = format!("{escaped}\"\\");
        assert!(line.contains(&format!("{message} field=\"{escaped}")), "{line}");
        assert!(line.contains(&format!(" shown={message} number=7")), "{line}");
    }

    #[test]
    fn a_message_has_a_length_and_a_prompt_has_none() {
        let long = "x".repeat(1_500_000);
        let line = logged(|| info!("{long}"));
        assert!(line.trim_end().ends_with("x...") && line.len() < LONGEST_MESSAGE + 100, "{}", line.len());
        assert!(logged(|| info!(prompts = long, "answered")).len() > 1_500_000);
    }

    #[test]
    fn a_line_of_json_hides_nothing_and_says_the_same() {
        let text = "é 你 \u{85}\u{9b}2J\u{2028}\u{202e}\u{2066} \u{e0001}";
        let line = format!("{{\"message\":{}}}\n", serde_json::to_string(text).expect("a text"));
        let mut written = Vec::new();
        let taken = io::Write::write(&mut EscapedJson(&mut written), line.as_bytes());
        assert_eq!(taken.expect("memory"), line.len());
        let written = String::from_utf8(written).expect("UTF-8");
        assert!(written.contains(r"é 你 \u0085\u009b2J\u2028\u202e\u2066 \udb40\udc01"), "{written}");
        assert_eq!(serde_json::from_str::<Value>(&written).expect("JSON")["message"], text);
    }

    #[test]
    fn a_structured_line_keeps_its_level_and_its_fields() {
        let line =
            ChildLine::parse(br#"{"level": "WARNING", "message": "slow", "step": 3, "timestamp": "x"}"#);
        assert_eq!(
            line,
            ChildLine::Event {
                level: Level::WARN,
                message: "slow step=3".into(),
                fatal: false,
                progress: false,
                listening: false,
                serving: None
            }
        );
        assert!(matches!(
            ChildLine::parse(br#"{"level": "INFO", "message": "loading weights: 40%", "progress": true}"#),
            ChildLine::Event { message, progress: true, .. } if message == "loading weights: 40%"
        ));
        assert!(matches!(
            ChildLine::parse(br#"{"level": "INFO", "message": "the router has left", "serving": false}"#),
            ChildLine::Event { message, serving: Some(false), .. } if message == "the router has left"
        ));
    }

    #[test]
    fn a_stack_trace_is_not_part_of_the_message() {
        let line = ChildLine::parse(
            br#"{"level": "error", "message": "broken", "trace": "Traceback ...", "fatal": true}"#,
        );
        assert_eq!(
            line,
            ChildLine::Event {
                level: Level::ERROR,
                message: "broken".into(),
                fatal: true,
                progress: false,
                listening: false,
                serving: None
            }
        );
    }

    #[test]
    fn what_is_no_event_is_kept_as_it_is() {
        assert_eq!(ChildLine::parse(b"[1, 2]\n"), ChildLine::Other("[1, 2]".into()));
        assert_eq!(ChildLine::parse(b"{\"level\": 3}\n"), ChildLine::Other("{\"level\": 3}".into()));
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_and_not_taken_for_a_module() {
        for text in ["verbose", "info,verbose", "penstock=loud", "no=such=filter", "2", "[span]"] {
            assert!(parse_level(text).is_err(), "{text}");
        }
        for text in ["", "INFO", "warning", "off", "info,penstock_router=debug", "trace"] {
            assert_eq!(parse_level(text), Ok(text.to_owned()));
        }
    }

    #[test]
    fn a_bare_level_is_about_penstock() {
        assert_eq!(directives("debug"), "info,penstock=debug");
        assert_eq!(directives("INFO"), "warn,penstock=info");
        assert_eq!(directives("info,hyper=trace"), "info,hyper=trace");
    }
}
