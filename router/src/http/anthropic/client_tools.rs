//! Tools that Anthropic defines and the client runs. A request has only their type and name: Anthropic's models know what they take.
//! Here they are functions that take the same, as https://platform.claude.com/docs/en/agents-and-tools/tool-use describes it.

use serde_json::{Value, json};

/// Types whose results are images.
pub fn shows_images(kind: &str) -> bool {
    kind.starts_with("computer_")
}

pub struct ClientTool {
    /// The only one that a request may give it.
    pub name: &'static str,
    pub description: &'static str,
    pub input_schema: Value,
}

const BASH: &str = "Run a command in a bash session that lasts: its working directory, variables and files stay from call to call. \
                    Commands that ask for input cannot be answered.";
const EDITOR: &str = "View, create and edit text files. `view` shows a file with line numbers, or what is in a directory; `create` writes \
                      a new file; `str_replace` replaces a text that occurs exactly once; `insert` puts a text after a line.";
const MEMORY: &str = "Files under /memories that stay from conversation to conversation. View /memories before anything else: earlier \
                      progress may be noted there. Note progress, since the conversation may end at any time.";

impl ClientTool {
    /// None: the type is of no such tool.
    pub fn of(kind: &str) -> Option<Self> {
        let (name, description, input_schema) = match kind {
            "bash_20241022" | "bash_20250124" => ("bash", BASH, bash()),
            "text_editor_20241022" | "text_editor_20250124" => {
                let commands = ["view", "create", "str_replace", "insert", "undo_edit"];
                ("str_replace_editor", EDITOR, editor(&commands, "new_str"))
            }
            "text_editor_20250429" => ("str_replace_based_edit_tool", EDITOR, editor(&EDITS, "new_str")),
            "text_editor_20250728" => ("str_replace_based_edit_tool", EDITOR, editor(&EDITS, "insert_text")),
            "memory_20250818" => ("memory", MEMORY, memory()),
            _ => return None,
        };
        Some(Self { name, description, input_schema })
    }
}

const EDITS: [&str; 4] = ["view", "create", "str_replace", "insert"];

fn bash() -> Value {
    json!({"type": "object", "properties": {
        "command": {"type": "string", "description": "The command. Required, but to restart."},
        "restart": {"type": "boolean", "description": "True begins a new session."},
    }})
}

/// What `insert` inserts has had two names.
fn editor(commands: &[&str], inserted: &str) -> Value {
    let mut schema = json!({"type": "object", "properties": {
        "command": {"type": "string", "enum": commands},
        "path": {"type": "string", "description": "Of the file, or of the directory to view."},
    }, "required": ["command", "path"]});
    add_edits(&mut schema, inserted);
    schema
}

fn memory() -> Value {
    let commands = [EDITS.as_slice(), &["delete", "rename"]].concat();
    let mut schema = json!({"type": "object", "properties": {
        "command": {"type": "string", "enum": commands},
        "path": {"type": "string", "description": "Of the file or directory, under /memories. Required, but for `rename`."},
    }, "required": ["command"]});
    add_edits(&mut schema, "insert_text");
    schema["properties"]["old_path"] = json!({"type": "string", "description": "What `rename` renames."});
    schema["properties"]["new_path"] = json!({"type": "string", "description": "Where `rename` puts it."});
    schema
}

/// What the commands take that both have.
fn add_edits(schema: &mut Value, inserted: &str) {
    let properties = &mut schema["properties"];
    properties["view_range"] = json!({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2,
        "description": "The first and last line that `view` shows, counted from 1; -1 is the end."});
    properties["file_text"] = json!({"type": "string", "description": "What `create` writes."});
    properties["old_str"] = json!({"type": "string", "description": "What `str_replace` replaces, exactly as it is in the file."});
    properties["new_str"] = json!({"type": "string", "description": "What stands in its place."});
    properties["insert_line"] = json!({"type": "integer", "description": "The line after which `insert` inserts; 0 is the beginning."});
    let is_own = inserted != "new_str";
    let description =
        if is_own { "What `insert` inserts." } else { "What stands in its place, or what `insert` inserts." };
    properties[inserted] = json!({"type": "string", "description": description});
}
