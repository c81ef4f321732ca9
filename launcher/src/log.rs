//! Logging of the whole server: one line for each event on standard output, as text or JSON, and the lines
//! of child processes in the same form. Set up once by `main`.

use serde::Deserialize;
use serde_json::{Map, Value};
use tracing::{Level, debug, error, info, warn};
use tracing_subscriber::EnvFilter;

use crate::flags::LogArgs;
use crate::surroundings::Surroundings;

pub fn start(args: &LogArgs, around: &Surroundings) -> Result<(), String> {
    let filter = EnvFilter::builder()
        .parse(directives(&args.log_level))
        .map_err(|error| format!("--log-level '{}': {error}", args.log_level))?;
    let show_target = filter.max_level_hint().is_some_and(|level| level >= Level::DEBUG);
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_target(show_target);
    if args.json_output {
        lines.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
    } else {
        lines.compact().with_ansi(around.stdout_is_terminal && !around.no_color).init();
    }
    Ok(())
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
                if tracing::enabled!(target: CHILD, Level::DEBUG) {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    message = format!("{message}\n{text}");
                }
            } else {
                message = format!("{message} {name}={value}");
            }
        }
        ChildLine::Event { level, message, fatal: event.fatal, progress: event.progress }
    }

    /// What a worker tells of itself at level info is for those who debug: the router says the same of the
    /// whole group. How far loading is, only it knows.
    pub fn log_of_worker(self, rank: Option<u32>) {
        let who = rank.map(|rank| format!("worker {rank}: ")).unwrap_or_default();
        let named = match self {
            ChildLine::Event { level, message, fatal, progress } => {
                let level = if level == Level::INFO && !progress { Level::DEBUG } else { level };
                ChildLine::Event { level, message: who + &message, fatal, progress }
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
    use super::*;

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
                progress: false
            }
        );
        assert!(matches!(
            ChildLine::parse(br#"{"level": "INFO", "message": "loading weights: 40%", "progress": true}"#),
            ChildLine::Event { message, progress: true, .. } if message == "loading weights: 40%"
        ));
    }

    #[test]
    fn a_stack_trace_is_not_part_of_the_message() {
        let line = ChildLine::parse(
            br#"{"level": "error", "message": "broken", "trace": "Traceback ...", "fatal": true}"#,
        );
        assert_eq!(
            line,
            ChildLine::Event { level: Level::ERROR, message: "broken".into(), fatal: true, progress: false }
        );
    }

    #[test]
    fn what_is_no_event_is_kept_as_it_is() {
        assert_eq!(ChildLine::parse(b"[1, 2]\n"), ChildLine::Other("[1, 2]".into()));
        assert_eq!(ChildLine::parse(b"{\"level\": 3}\n"), ChildLine::Other("{\"level\": 3}".into()));
    }

    #[test]
    fn a_bare_level_is_about_penstock() {
        assert_eq!(directives("debug"), "info,penstock=debug");
        assert_eq!(directives("INFO"), "warn,penstock=info");
        assert_eq!(directives("info,hyper=trace"), "info,hyper=trace");
    }
}
