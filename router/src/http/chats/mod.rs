//! What chats have in common, whatever dialect they come in: the functions that a request brings (`tools`), how the model
//! writes calls and reasoning (`formats`), and an answer's text as content, reasoning and
//! calls (`reader`), also as blocks (`blocks`).

pub mod blocks;
pub mod formats;
pub mod reader;
pub mod tools;
