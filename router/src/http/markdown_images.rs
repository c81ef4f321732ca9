//! Images in Markdown, `![](URL)`, which TGI shows to a model that reads images. Here such a model would get the URL as text, and
//! describe what it never saw. Dialects that TGI has call this for texts in which clients of TGI send images; to a model that
//! reads only text this is Markdown like any other, as in TGI.

use crate::http::error::{ApiError, Place};
use crate::http::warnings::Warnings;
use crate::limits::Limits;

/// Those of a request.
pub struct MarkdownImages {
    are_left_out: bool,
    first: Option<Place>,
    others: usize,
}

impl MarkdownImages {
    pub fn of(limits: &Limits) -> Self {
        Self { are_left_out: limits.images_left_out, first: None, others: 0 }
    }

    /// An image that stands in the text itself is an error: its base64 is never meant as a prompt.
    pub fn look(&mut self, place: &Place, text: &str) -> Result<(), ApiError> {
        if !self.are_left_out {
            return Ok(());
        }
        for url in urls(text) {
            if url.starts_with("data:") {
                let text = "has an image as a data: URL, which is not supported yet: only text is";
                return Err(ApiError::invalid(place, text));
            }
            if url.starts_with("http://") || url.starts_with("https://") {
                match self.first {
                    None => self.first = Some(place.clone()),
                    Some(_) => self.others += 1,
                }
            }
        }
        Ok(())
    }

    /// One line for all.
    pub fn warn(self, warnings: &mut Warnings) {
        let Some(place) = self.first else { return };
        let others = match self.others {
            0 => String::new(),
            others => format!("; so it is with {others} more"),
        };
        let why = format!("here: only text is supported, and the model reads the URL{others}");
        warnings.part_without_effect(&place.to_string(), "an image", &why);
    }
}

/// As TGI finds them: without an alternative text.
fn urls(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once("![](")?;
        let (url, after) = after.split_once(')')?;
        rest = after;
        Some(url)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::tests::limits;

    fn looked(images_left_out: bool, texts: &[&str]) -> Result<String, String> {
        let limits = Limits { images_left_out, ..limits() };
        let mut images = MarkdownImages::of(&limits);
        for (index, text) in texts.iter().enumerate() {
            images.look(&Place::from("messages").entry(index), text).map_err(|error| error.to_string())?;
        }
        let mut warnings = Warnings::default();
        images.warn(&mut warnings);
        Ok(warnings.lines().join("; "))
    }

    #[test]
    fn an_image_is_named_where_the_model_would_read_it() {
        let rabbit = "![](https://x.org/rabbit.png)What is this?";
        let line = "`messages[1]` has an image, which has no effect here: only text is supported, and the model reads the URL";
        assert_eq!(looked(true, &["x", rabbit]).as_deref(), Ok(line));
        let more = format!("{rabbit} ![](http://x.org/a.png)");
        assert_eq!(looked(true, &["x", &more, rabbit]), Ok(format!("{line}; so it is with 2 more")));
        let refused = "`messages[0]` has an image as a data: URL, which is not supported yet: only text is";
        let data = "![](data:image/png;base64,iVBORw0KGgo=)";
        assert_eq!(looked(true, &[data]), Err(refused.to_owned()));
        for text in [rabbit, data] {
            assert_eq!(looked(false, &[text]).as_deref(), Ok(""));
        }
        for text in [
            "![a](https://x.org/a.png)",
            "[](https://x.org)",
            "![](a.png)",
            "![](https://x.org",
            "![](data:",
            "![]",
        ] {
            assert_eq!(looked(true, &[text]).as_deref(), Ok(""), "{text}");
        }
    }

    /// Each character is looked at once.
    #[test]
    fn marks_without_an_end_take_no_time() {
        let text = "![](data:".repeat(200_000);
        assert_eq!(looked(true, &[&text]).as_deref(), Ok(""));
    }
}
