//! What chats have in common, whatever dialect they come in: what is asked (`request`), read from the dialect's own objects
//! (`object`), the tools that a request brings (`functions`) and what they make of the answer (`tools`), how the model writes calls and reasoning (`formats`), what its
//! template does with tools, calls and results (`manners`), which are brought to where it shows them (`template_places`), with messages that it may not read (`message_manners`) and with efforts (`effort`), what messages hold (`messages`), what of tools' results a model cannot be shown (`unseen`), tools as some models declare them (`typescript`), and an answer's text as content, reasoning and calls (`reader`), also as blocks (`blocks`).

pub mod blocks;
pub mod effort;
#[cfg(test)]
mod families;
pub mod formats;
pub mod functions;
pub mod manners;
pub mod message_manners;
pub mod messages;
pub mod object;
pub mod reader;
pub mod request;
pub mod template_places;
pub mod tools;
pub mod typescript;
pub mod unseen;
