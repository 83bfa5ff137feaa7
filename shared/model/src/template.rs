//! The chat template of the checkpoint: Jinja, rendered as transformers renders it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, context};
use serde_json::{Map, Value};

use crate::error::{ModelError, Result};

/// The one template of the environment.
const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    path: PathBuf,
    environment: Environment<'static>,
    /// What the template sees beside the messages: the tokens named in the tokenizer's config.
    named_tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// `chat_template.jinja`, else the `chat_template` of `tokenizer_config.json`.
    pub(crate) fn open(processor: &Path, tokenizer_config: &Map<String, Value>) -> Result<Self> {
        let file = processor.join("chat_template.jinja");
        let config = processor.join("tokenizer_config.json");
        let (path, source) = if file.is_file() {
            let source = std::fs::read_to_string(&file).map_err(|source| ModelError::Io {
                path: file.clone(),
                source,
            })?;
            (file, source)
        } else if let Some(source) = tokenizer_config
            .get("chat_template")
            .and_then(Value::as_str)
        {
            (config, source.to_owned())
        } else {
            let problem = "is missing, and tokenizer_config.json has none".to_owned();
            return Err(ModelError::Template {
                path: file,
                problem,
            });
        };
        let named_tokens = named_tokens(tokenizer_config)
            .map(|(name, token)| (name.to_owned(), token.to_owned()))
            .collect();
        let template = Self::compile(path, source, named_tokens)?;
        template.refuse_unless_faithful()?;
        Ok(template)
    }

    /// A template that drops the prompt would serve the same picture for every prompt.
    fn refuse_unless_faithful(&self) -> Result<()> {
        const SENTINEL: &str = "a prompt, 1234";
        let found = self.render(SENTINEL)?.matches(SENTINEL).count();
        if found == 1 {
            return Ok(());
        }
        Err(ModelError::Template {
            path: self.path.clone(),
            problem: format!("renders a prompt {found} times, not once"),
        })
    }

    fn compile(
        path: PathBuf,
        source: String,
        named_tokens: BTreeMap<String, String>,
    ) -> Result<Self> {
        let mut environment = Environment::new();
        // As transformers sets them up.
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|error| failed(&path, &error))?);
        environment.add_function("raise_exception", |text: String| -> Result<String, _> {
            Err(minijinja::Error::new(
                minijinja::ErrorKind::InvalidOperation,
                text,
            ))
        });
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| failed(&path, &error))?;
        Ok(Self {
            path,
            environment,
            named_tokens,
        })
    }

    /// One user message of one text.
    pub(crate) fn render(&self, prompt: &str) -> Result<String> {
        let content = context! { type => "text", text => prompt };
        let message = context! { role => "user", content => vec![content] };
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| failed(&self.path, &error))?;
        template
            .render(context! {
                messages => vec![message],
                add_generation_prompt => false,
                ..minijinja::Value::from(self.named_tokens.clone())
            })
            .map_err(|error| failed(&self.path, &error))
    }
}

/// `bos_token`, `image_token`, …: the tokens that a tokenizer config gives a name.
pub(crate) fn named_tokens(config: &Map<String, Value>) -> impl Iterator<Item = (&str, &str)> {
    config
        .iter()
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| {
            // Some writers put {"content": …} where others put the text.
            let token = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((name.as_str(), token))
        })
}

fn failed(path: &Path, error: &minijinja::Error) -> ModelError {
    let text = error.to_string();
    let problem = format!("fails, {}", text.lines().next().unwrap_or_default());
    ModelError::Template {
        path: path.to_owned(),
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(source: &str) -> Result<ChatTemplate> {
        ChatTemplate::compile(PathBuf::from("x.jinja"), source.to_owned(), BTreeMap::new())
    }

    #[test]
    fn blocks_are_trimmed_as_in_transformers() {
        let source = "{% for m in messages %}\n  {% for c in m['content'] %}\n{{ c.text }}{% endfor %}\n{% endfor %}\n";
        assert_eq!(
            compile(source)
                .and_then(|t| t.render("a cat"))
                .expect("text"),
            "a cat"
        );
    }

    #[test]
    fn the_prompt_is_never_escaped_nor_evaluated() {
        let template = compile("{{ messages[0].content[0].text }}").expect("a template");
        let prompt = r#"<b> & "x" {{ 1 + 1 }} {% raw %}"#;
        assert_eq!(template.render(prompt).expect("text"), prompt);
    }

    #[test]
    fn a_broken_or_failing_template_is_an_error_that_names_the_file() {
        for source in [
            "{% for %}",
            "{{ raise_exception('no') }}",
            "{{ nothing.at.all }}",
        ] {
            let error = compile(source)
                .and_then(|t| t.render("x"))
                .expect_err(source);
            assert!(
                matches!(error, ModelError::Template { path, .. } if path.ends_with("x.jinja"))
            );
        }
    }
}
