//! The values of `format` as expressions, each with its source. They accept a part of what the source does, never more,
//! so that a text stays valid for whoever checks formats strictly. A format that is not here asserts nothing.

use std::sync::LazyLock;

/// RFC 3339, section 5.6, without leap seconds; a 29th of February only in leap years.
const DATE: &str = concat!(
    r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
);
const TIME: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[Zz]|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// RFC 3339, appendix A.
const DURATION: &str = concat!(
    r"P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)",
    r"(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?",
    r"|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))"
);
/// RFC 5321, section 4.1.2: a dot-string of up to 64. An expression that counts the dots and all characters as well would have a state for
/// each pair of both, so of a text with several dots the longest are left out.
const LOCAL: &str = concat!(
    r"(?:[A-Za-z0-9!#$%&'*+\-/=?\^_`{|}~]{1,64}",
    r"|[A-Za-z0-9!#$%&'*+\-/=?\^_`{|}~]{1,31}\.[A-Za-z0-9!#$%&'*+\-/=?\^_`{|}~]{1,32}",
    r"|[A-Za-z0-9!#$%&'*+\-/=?\^_`{|}~]{1,20}(?:\.[A-Za-z0-9!#$%&'*+\-/=?\^_`{|}~]{1,20}){2}",
    r"|[A-Za-z0-9!#$%&'*+\-/=?\^_`{|}~](?:\.?[A-Za-z0-9!#$%&'*+\-/=?\^_`{|}~]){0,31})"
);
/// RFC 2673, section 3.2.
const IPV4: &str =
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
/// RFC 4291, section 2.2, forms 1 and 2; and before [`IPV4`], form 3.
const GROUPS: &str = concat!(
    r"(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|(?:[0-9A-Fa-f]{1,4}:){1,7}:",
    r"|(?:[0-9A-Fa-f]{1,4}:){1,6}:[0-9A-Fa-f]{1,4}|(?:[0-9A-Fa-f]{1,4}:){1,5}(?::[0-9A-Fa-f]{1,4}){1,2}",
    r"|(?:[0-9A-Fa-f]{1,4}:){1,4}(?::[0-9A-Fa-f]{1,4}){1,3}|(?:[0-9A-Fa-f]{1,4}:){1,3}(?::[0-9A-Fa-f]{1,4}){1,4}",
    r"|(?:[0-9A-Fa-f]{1,4}:){1,2}(?::[0-9A-Fa-f]{1,4}){1,5}|[0-9A-Fa-f]{1,4}:(?::[0-9A-Fa-f]{1,4}){1,6}",
    r"|:(?::[0-9A-Fa-f]{1,4}){1,7}|::"
);
const GROUPS_BEFORE_IPV4: &str = concat!(
    r"(?:[0-9A-Fa-f]{1,4}:){6}|::(?:[0-9A-Fa-f]{1,4}:){0,5}|(?:[0-9A-Fa-f]{1,4}:){1,5}:",
    r"|(?:[0-9A-Fa-f]{1,4}:){1,4}:[0-9A-Fa-f]{1,4}:|(?:[0-9A-Fa-f]{1,4}:){1,3}(?::[0-9A-Fa-f]{1,4}){1,2}:",
    r"|(?:[0-9A-Fa-f]{1,4}:){1,2}(?::[0-9A-Fa-f]{1,4}){1,3}:|[0-9A-Fa-f]{1,4}:(?::[0-9A-Fa-f]{1,4}){1,4}:"
);
/// RFC 4122, section 3.
const UUID: &str = r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";
/// RFC 3986: one character of a path, and of a query or fragment.
const PCHAR: &str = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})";
const QCHAR: &str = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})";
/// RFC 6901, section 3; and relative ones.
const POINTER: &str = r"(?:/(?:[^/~\x00-\x1F]|~[01])*)*";
/// RFC 6570: text and expressions of plain names.
const TEMPLATE: &str = concat!(
    r"(?:[A-Za-z0-9\-._~!$&()*+,;=:@/?#\[\]]|%[0-9A-Fa-f]{2}",
    r"|\{[+#./;?&]?[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*(?::[1-9][0-9]{0,3}|\*)?",
    r"(?:,[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*(?::[1-9][0-9]{0,3}|\*)?)*\})*"
);

/// Ports of TCP, which clients read as such, where RFC 3986 has any digits.
const PORT: &str = r"(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";

/// RFC 1123, section 2.1: a label of up to `most` characters. Hyphens in third and fourth place mark labels of another kind (RFC 5891,
/// section 4.2.3.1), which are left out.
fn label(most: usize) -> String {
    let (behind_three, behind_four) = (most - 4, most - 5);
    format!(
        "[A-Za-z0-9](?:[A-Za-z0-9\\-]?[A-Za-z0-9]|[A-Za-z0-9\\-][A-Za-z0-9][A-Za-z0-9\\-]{{0,{behind_three}}}[A-Za-z0-9]\
        |[A-Za-z0-9\\-]-[A-Za-z0-9](?:[A-Za-z0-9\\-]{{0,{behind_four}}}[A-Za-z0-9])?)?"
    )
}

/// Names of hosts, whose whole length is bounded by how many labels they have: one or two of up to 63 and `short` of up to 30 behind them, or
/// `all` of up to 30.
fn host(short: usize, all: usize) -> String {
    let (label_of_63, label_of_30) = (label(63), label(30));
    let others = all - 1;
    format!(
        r"(?:{label_of_63}(?:\.{label_of_63})?(?:\.{label_of_30}){{0,{short}}}|{label_of_30}(?:\.{label_of_30}){{0,{others}}})"
    )
}

/// A URI with an authority or a path, or a reference to one, as RFC 3986 has them.
fn uri(is_reference: bool) -> String {
    let ipv6 = &*IPV6;
    let authority = format!(
        r"//(?:(?:[A-Za-z0-9\-._~!$&'()*+,;=:]|%[0-9A-Fa-f]{{2}})*@)?(?:(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{{2}})*|\[(?:{ipv6})\])(?::{PORT})?(?:/{PCHAR}*)*"
    );
    let absolute = format!("/(?:{PCHAR}+(?:/{PCHAR}*)*)?");
    let rootless = format!("{PCHAR}+(?:/{PCHAR}*)*");
    let tail = format!(r"(?:\?{QCHAR}*)?(?:\#{QCHAR}*)?");
    let whole = format!(r"[A-Za-z][A-Za-z0-9+\-.]*:(?:{authority}|{absolute}|{rootless})?{tail}");
    if !is_reference {
        return whole;
    }
    // The first segment of a relative path has no colon, which would end a scheme.
    let segment = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=@]|%[0-9A-Fa-f]{2})";
    format!("{whole}|(?:{authority}|{absolute}|{segment}+(?:/{PCHAR}*)*)?{tail}")
}

static URI: LazyLock<String> = LazyLock::new(|| uri(false));
static URI_REFERENCE: LazyLock<String> = LazyLock::new(|| uri(true));
static DATE_TIME: LazyLock<String> = LazyLock::new(|| format!("(?:{DATE})[Tt]{TIME}"));
static IPV6: LazyLock<String> = LazyLock::new(|| format!("{GROUPS}|(?:{GROUPS_BEFORE_IPV4}){IPV4}"));
/// Up to 251 and 247 characters, of 253.
static HOSTNAME: LazyLock<String> = LazyLock::new(|| host(4, 8));
/// Up to 254 (RFC 5321, section 4.5.3.1.3), of which the host has 189.
static EMAIL: LazyLock<String> = LazyLock::new(|| format!("{LOCAL}@{}", host(2, 6)));
/// Narrower ones of both: labels of up to 15 characters between hyphens, and no two of those in a row.
const NARROW_LABEL: &str = r"[A-Za-z0-9]{1,15}(?:-[A-Za-z0-9]{1,15}){0,3}";
static NARROW_HOSTNAME: LazyLock<String> =
    LazyLock::new(|| format!(r"{NARROW_LABEL}(?:\.{NARROW_LABEL}){{0,3}}"));
static NARROW_EMAIL: LazyLock<String> = LazyLock::new(|| {
    let atom = r"[A-Za-z0-9!#$%&'*+\-/=?\^_`{|}~]{1,20}";
    format!(r"{atom}(?:\.{atom}){{0,2}}@{NARROW_LABEL}(?:\.{NARROW_LABEL}){{0,2}}")
});
static RELATIVE_POINTER: LazyLock<String> =
    LazyLock::new(|| format!(r"(?:0|[1-9][0-9]{{0,8}})(?:\#|{POINTER})"));
/// Expressions without groups in groups, and classes without odd ranges: any engine reads them alike.
static REGEX: LazyLock<String> = LazyLock::new(|| {
    let class = r"\[\^?(?:a-z|A-Z|0-9|\\[dDwWsS.\-]|[A-Za-z0-9_ .,:/@])+\]";
    let atom = format!(r"(?:[A-Za-z0-9_ ,:;/@#%&=<>!'~`.\-]|\\[dDwWsStnr.*+?()\[\]{{}}|/\^$\\]|{class})");
    let count = r"(?:[*+?]|\{[0-9]{1,2}\}|\{[0-9]{1,2},\})?";
    let run = format!("(?:{atom}{count})*");
    let group = format!(r"\((?:\?:)?{run}(?:\|{run})*\){count}");
    let branch = format!(r"\^?(?:{atom}{count}|{group})*\$?");
    format!(r"{branch}(?:\|{branch})*")
});

/// One that is narrower and has fewer states, for where a pattern makes the other one too complex.
pub(super) fn narrow(format: &str) -> Option<&'static str> {
    match format {
        "email" | "idn-email" => Some(&NARROW_EMAIL),
        "hostname" | "idn-hostname" => Some(&NARROW_HOSTNAME),
        _ => None,
    }
}

/// The expression for a format, without anchors; None where the format asserts nothing.
pub(crate) fn expression(format: &str) -> Option<&'static str> {
    Some(match format {
        "date-time" => &DATE_TIME,
        "date" => DATE,
        "time" => TIME,
        "duration" => DURATION,
        "email" | "idn-email" => &EMAIL,
        "hostname" | "idn-hostname" => &HOSTNAME,
        "ipv4" => IPV4,
        "ipv6" => &IPV6,
        "uuid" => UUID,
        "uri" | "iri" => &URI,
        "uri-reference" | "iri-reference" => &URI_REFERENCE,
        "uri-template" => TEMPLATE,
        "json-pointer" => POINTER,
        "relative-json-pointer" => &RELATIVE_POINTER,
        "regex" => &REGEX,
        _ => return None,
    })
}

/// The formats that are asserted, for the table in the documentation.
#[cfg(test)]
pub(super) const NAMES: [&str; 18] = [
    "date-time",
    "date",
    "time",
    "duration",
    "email",
    "idn-email",
    "hostname",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "iri",
    "uri-reference",
    "iri-reference",
    "uri-template",
    "json-pointer",
    "regex",
];

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexBuilder;

    use super::*;

    fn is_match(format: &str, text: &str) -> bool {
        let mut builder = RegexBuilder::new();
        let expression = builder.mk_regex(expression(format).unwrap()).unwrap();
        builder.to_regex(expression).is_match(text)
    }

    #[test]
    fn every_format_compiles() {
        for name in NAMES {
            is_match(name, "x");
        }
    }

    #[test]
    fn dates_know_leap_years() {
        for day in ["2024-02-29", "2000-02-29", "1999-12-31", "2023-02-28"] {
            assert!(is_match("date", day), "{day}");
        }
        for day in ["2023-02-29", "1900-02-29", "2024-02-30", "2024-04-31", "2024-13-01", "24-01-01"] {
            assert!(!is_match("date", day), "{day}");
        }
        assert!(is_match("date-time", "2024-02-29T23:59:59.5+01:00"));
        assert!(!is_match("date-time", "2024-02-29 23:59:59Z"));
    }

    #[test]
    fn names_and_addresses() {
        assert!(is_match("hostname", "a-b.example") && !is_match("hostname", "-a.example"));
        assert!(
            is_match("hostname", "a")
                && is_match("hostname", "ab")
                && is_match("hostname", "www.example.com")
        );
        assert!(!is_match("hostname", "ab--c.example") && !is_match("hostname", "a-"));
        assert!(is_match("email", "a.b+c@example.org") && !is_match("email", "a..b@example.org"));
        assert!(is_match("ipv4", "127.0.0.1") && !is_match("ipv4", "127.0.0.256"));
        assert!(is_match("ipv6", "fe80::1") && is_match("ipv6", "::") && !is_match("ipv6", "1::2::3"));
        assert!(
            is_match("uri", "https://a.b:80/c?d=e#f") && is_match("uri", "urn:a:b") && !is_match("uri", "/a")
        );
        assert!(is_match("uri-reference", "/a/b") && is_match("uri-reference", "a/b:c"));
        assert!(
            is_match("regex", r"^[a-z0-9]+\.(?:b|c)*$") && !is_match("regex", "(") && !is_match("regex", "*")
        );
    }

    /// Each is judged by a validator as well.
    #[test]
    fn everyday_values_can_be_written() {
        let of_length = |count: usize| "a".repeat(count);
        let labels = |count: usize, length: usize| vec![of_length(length); count].join(".");
        let good: Vec<(&str, String)> = [
            ("uri", "http://localhost:11434/v1"),
            ("uri", "mongodb://user:secret@h.io:27017/db?x=1"),
            ("uri", "https://10.0.0.1:65535"),
            ("uri", "http://[::1]:8080/"),
            ("uri", "http://[2001:db8::ffff:192.0.2.1]"),
            ("uri-reference", "//localhost:30000/a"),
            ("uri-template", "/users/{userId}/posts{?maxCount,pageSize}"),
            ("hostname", "pricewaterhousecoopers.com"),
            ("hostname", "my-svc.my-ns.svc.cluster.local"),
            ("hostname", "ec2-52-14-199-87.us-east-2.compute.amazonaws.com"),
            ("hostname", "b-1.mycluster.abc123.c2.kafka.us-east-1.amazonaws.com"),
            ("hostname", "a0123456789abcdef0123456789abcdef-1234567890.us-east-1.elb.amazonaws.com"),
            ("hostname", "a-very-long-name-of-a-host-with-many-hyphens.example"),
            ("hostname", "abc--d.example"),
            ("hostname", "a--b"),
            ("email", "jane@berkshirehathaway.com"),
            ("email", "jan@mail.example.co.uk"),
            ("email", "a@students.cs.ox.ac.uk"),
            ("email", "no-reply-notifications@x.com"),
            ("email", "first.middle.last.jr@x.com"),
            ("email", "a.b.c.d.e.f@x.com"),
            ("ipv6", "::ffff:192.168.0.1"),
            ("ipv6", "64:ff9b::1:192.0.2.33"),
            ("ipv6", "1:2:3:4:5:6:1.2.3.4"),
            ("ipv6", "1:2:3:4:5::1.2.3.4"),
        ]
        .map(|(format, text)| (format, text.to_owned()))
        .into_iter()
        .chain([
            ("hostname", of_length(63)),
            ("hostname", labels(2, 63) + "." + &labels(4, 30)),
            ("hostname", labels(8, 30)),
            ("email", format!("{}@{}", of_length(64), labels(2, 63) + "." + &labels(2, 30))),
            ("email", format!("{}@{}", of_length(64), labels(6, 30))),
        ])
        .collect();
        let bad: Vec<(&str, String)> = [
            ("uri", "http://localhost:65536"),
            ("uri", "http://localhost:123456"),
            ("uri", "http://[::1::]/"),
            ("hostname", "ab--"),
            ("hostname", "a--"),
            ("hostname", "a..b"),
            ("hostname", "a-.b"),
            ("hostname", "a.-b"),
            ("email", "a.@b.co"),
            ("email", ".a@b.co"),
            ("email", "a@b-.co"),
            ("ipv6", "1:2:3:4:5:6:7:1.2.3.4"),
            ("ipv6", "1:2:3:4:5:6::1.2.3.4"),
            ("ipv6", "::1:2:3:4:5:6:1.2.3.4"),
            ("ipv6", "::1.2.3"),
            ("ipv6", "1.2.3.4"),
            ("ipv6", ":1.2.3.4"),
        ]
        .map(|(format, text)| (format, text.to_owned()))
        .into_iter()
        .chain([
            ("hostname", of_length(64)),
            ("hostname", of_length(64) + ".a"),
            ("hostname", labels(8, 32)),
            ("email", format!("{}@b.co", of_length(65))),
            ("email", format!("{}@b.co", labels(3, 21) + &of_length(1))),
        ])
        .collect();
        for (texts, is_good) in [(good, true), (bad, false)] {
            for (format, text) in texts {
                assert_eq!(is_match(format, &text), is_good, "{format}: {text}");
                let schema = serde_json::json!({"format": format});
                let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
                // It takes every number for a port, and small letters alone for those of a template.
                if !text.contains("localhost:") && format != "uri-template" {
                    assert_eq!(validator.is_valid(&text.as_str().into()), is_good, "{format}: {text}");
                }
            }
        }
    }
}
