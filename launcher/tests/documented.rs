//! The installed command against its page: every flag that `--help` shows is in docs/launcher.md.

use std::process::Command;

#[test]
fn every_flag_of_the_help_is_documented() {
    let help = Command::new(env!("CARGO_BIN_EXE_penstock")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let page = include_str!("../../docs/launcher.md");
    // What a flag does is further to the right, and may begin a line with another flag.
    let flags = help.lines().filter(|line| line.len() - line.trim_start().len() < 8);
    let shown = flags.filter_map(|line| {
        let words = line.trim_start();
        words
            .split_whitespace()
            .find(|word| word.starts_with("--") && !word.ends_with(']'))
            .filter(|_| words.starts_with('-'))
    });
    let missing: Vec<&str> = shown
        .filter(|flag| !matches!(*flag, "--help" | "--version"))
        .filter(|flag| !page.contains(&format!("`{flag}`")))
        .collect();
    assert!(help.contains("--model-id") && missing.is_empty(), "docs/launcher.md lacks {missing:?}");
}

#[test]
fn every_flag_of_the_doctor_is_documented() {
    let help = Command::new(env!("CARGO_BIN_EXE_penstock")).args(["doctor", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let pages = [include_str!("../../docs/doctor.md"), include_str!("../../docs/launcher.md")].concat();
    let flags: Vec<&str> = help
        .lines()
        .filter(|line| line.trim_start().starts_with('-'))
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")))
        .collect();
    let missing: Vec<_> =
        flags.iter().filter(|flag| **flag != "--help" && !pages.contains(&format!("`{flag}`"))).collect();
    assert!(flags.contains(&"--model-id") && flags.contains(&"--json") && missing.is_empty(), "{missing:?}");
}
