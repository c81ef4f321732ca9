//! The installed command with wrong flags and environments: exit codes, and one line that names the flag.

use std::process::{Command, Output};

fn penstock(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_penstock"))
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .expect("cargo has just built the command")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_flag_that_does_not_exist_or_parse_is_exit_code_2() {
    for arguments in [
        &["--no-such-flag"][..],
        &["--port", "many"],
        &["--num-shard", "0"],
        &["word"],
        &["--log-level", "verbose"],
        &["--master-addr", "a/b"],
        &["--load-timeout", "soon"],
    ] {
        assert_eq!(penstock(arguments, &[]).status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(penstock(&[], &[("PORT", "many")]).status.code(), Some(2));
}

#[test]
fn a_wrong_value_of_a_variable_is_said_with_the_variable_and_one_of_the_command_line_without() {
    for (variable, value) in [("PORT", "many"), ("JSON_OUTPUT", "2"), ("DTYPE", "half")] {
        let said = said(&penstock(&[], &[(variable, value)]));
        assert!(said.contains(&format!("the environment variable {variable}")), "{said}");
    }
    let said = |arguments: &[&str]| said(&penstock(arguments, &[("PORT", "80")]));
    let port = said(&["--port", "many"]);
    assert!(port.contains("must be a whole number") && !port.contains("environment"), "{port}");
    let negative = said(&["--max-total-tokens", "-5"]);
    assert!(negative.contains("-5 is not in 2..=4294967295"), "{negative}");
    let model = said(&["owner/name"]);
    assert!(model.contains("--model-id owner/name"), "{model}");
}

#[test]
fn a_command_calls_itself_by_its_whole_name() {
    for command in ["doctor", "worker", "replay"] {
        let help = penstock(&[command, "--help"], &[]);
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(help.contains(&format!("Usage: penstock {command} ")), "{help}");
    }
}

#[test]
fn everything_else_is_exit_code_1_and_one_line() {
    for (arguments, environment, names) in [
        (&["--sharded", "true"][..], &[][..], "--sharded true"),
        (&["--num-shard", "2", "--device", "cuda:0"], &[], "--num-shard"),
        (&["--ngrok-authtoken", "sesame"], &[], "--ngrok-authtoken is not supported yet"),
        (&[], &[("NGROK_AUTHTOKEN", "sesame")], "NGROK_AUTHTOKEN is not supported yet"),
        (&["--api-key-file", "/no/such/file"], &[], "--api-key-file /no/such/file"),
        (&[], &[("QUANTIZE", "exl2")], "QUANTIZE"),
        (&[], &[("NUM_SHARD", "2"), ("SHARDED", "false")], "--num-shard"),
        (&["--sharded", "true"], &[("CUDA_VISIBLE_DEVICES", "3")], "CUDA_VISIBLE_DEVICES shows 1"),
        (&[], &[("MAX_INPUT_LENGTH", "5"), ("MAX_INPUT_TOKENS", "5")], "MAX_INPUT_LENGTH"),
        (&["--max-total-tokens", "5"], &[("MAX_INPUT_LENGTH", "5")], "--max-input-tokens"),
        (&[], &[("HF_MODEL_ID", "a/b"), ("MODEL_ID", "a/b")], "HF_MODEL_ID"),
        (&["--model-id", "/no/such/folder"], &[], "/no/such/folder"),
        (&["--tls-cert", "/no/such/file"], &[], "--tls-key"),
        (&["--record", "/dev/null"], &[], "--record /dev/null: there is a file of this name"),
        (&["--record", "/no/such/folder/record"], &[], "--record /no/such/folder/record"),
        (&["--device", "cuda:7", "--num-shard", "2"], &[], "--device cuda:7"),
    ] {
        let output = penstock(arguments, environment);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains(names) && said.lines().count() == 1, "{arguments:?}: {said}");
        assert!(!said.contains("sesame"), "{said}");
    }
}

#[test]
fn a_failed_start_is_said_in_json_too_and_where_the_log_is_off() {
    let arguments = ["--json-output", "--model-id", "/no/such/folder"];
    let output = penstock(&arguments, &[]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("/no/such/folder") && said(&output).is_empty());
    let output = penstock(&arguments, &[("LOG_LEVEL", "off")]);
    assert!(said(&output).contains("/no/such/folder") && output.stdout.is_empty());
}

#[test]
fn of_two_names_of_the_hubs_cache_the_newer_one_wins() {
    let folder = tempfile::tempdir().unwrap();
    // Stands in for the interpreter and says what it was asked.
    let python = folder.path().join("python");
    std::fs::write(&python, "#!/bin/sh\necho \"$@\"\n").unwrap();
    std::fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let arguments = ["doctor", "--model-id", "a/b", "--python", python.to_str().unwrap()];
    let asked =
        |environment: &[(&str, &str)]| String::from_utf8(penstock(&arguments, environment).stdout).unwrap();
    let older = ("HUGGINGFACE_HUB_CACHE", "/older");
    assert!(asked(&[older]).contains("--cache-dir /older"));
    assert!(asked(&[older, ("HF_HUB_CACHE", "")]).contains("--cache-dir /older"));
    // Python reads that one itself.
    assert!(!asked(&[older, ("HF_HUB_CACHE", "/newer")]).contains("--cache-dir"));
}

#[test]
fn the_command_answers_to_tgis_name() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("text-generation-launcher");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_penstock"), &link).unwrap();
    let output = Command::new(link).arg("--version").output().unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"penstock "));
}

#[test]
fn a_taken_port_is_said_before_anything_starts() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = penstock(&["--hostname", "127.0.0.1", "--port", &port], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains(&format!("--port {port}")), "{}", said(&output));
}

#[test]
fn what_container_platforms_set_by_themselves_is_no_error() {
    let machine = [("HOSTNAME", "3f2a9c"), ("REVISION", ""), ("MAX_BATCH_SIZE", ""), ("PATH", "")];
    // It gets as far as looking for the folder.
    let output = penstock(&["--model-id", "/no/such/folder"], &machine);
    assert!(said(&output).contains("/no/such/folder"), "{}", said(&output));
}

#[test]
fn a_sagemaker_container_serves_what_its_variables_name() {
    let model = ("HF_MODEL_ID", "/no/such/folder");
    // PORT is the image's, and not SageMaker's.
    let output = penstock(&["serve"], &[model, ("PORT", "many"), ("SM_NUM_GPUS", "1")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("/no/such/folder"), "{}", said(&output));
    for (variable, names) in [
        ("HF_MODEL_REVISION", "--revision"),
        ("HF_MODEL_QUANTIZE", "--quantize"),
        ("SM_NUM_GPUS", "--num-shard"),
        ("HF_MODEL_TRUST_REMOTE_CODE", "--trust-remote-code"),
    ] {
        let output = penstock(&["serve"], &[(variable, "word")]);
        assert!(said(&output).contains(names), "{variable}: {}", said(&output));
    }
}

#[test]
fn help_and_version_are_exit_code_0_and_show_no_secret() {
    let output = penstock(&["--help"], &[("API_KEY", "sesame"), ("HF_TOKEN", "sesame")]);
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("Batching:") && !help.contains("sesame") && help.contains("--api-key"));
    assert_eq!(penstock(&["--version"], &[]).status.code(), Some(0));
}

#[test]
fn the_doctor_refuses_what_it_does_not_know_and_says_when_there_is_no_python() {
    assert_eq!(penstock(&["doctor", "--port", "80"], &[]).status.code(), Some(2));
    assert_eq!(penstock(&["doctor", "--help"], &[]).status.code(), Some(0));
    let output = penstock(&["doctor", "--python", "/no/such/python"], &[("REVISION", "")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("/no/such/python"), "{}", said(&output));
}
