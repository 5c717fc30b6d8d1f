//! `kubectl completion`: a script that asks kubectl itself, through the hidden `__complete`.

use super::SETTINGS;
use crate::cli::Cli;
use crate::command::{Command, GLOBAL_FLAGS};
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::transport::Request;

pub const COMMAND: Command = Command {
    name: "completion",
    group: SETTINGS,
    short: "Print a completion script for a shell",
    usage: "SHELL",
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

/// Not shown in help; what the scripts call.
pub const COMPLETE: Command = Command {
    name: "__complete",
    short: "Complete a command line",
    usage: "WORDS...",
    run: Some(|cli| Box::pin(complete(cli))),
    ..Command::NONE
};

const BASH: &str = r#"# bash completion for kubectl
_kubectl_complete() {
    local words
    mapfile -t words < <(kubectl __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=($(compgen -W "${words[*]}" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _kubectl_complete kubectl
"#;
const ZSH: &str = r#"#compdef kubectl
_kubectl() {
    local -a choices
    choices=(${(f)"$(kubectl __complete -- "${(@)words[2,$CURRENT]}" 2>/dev/null)"})
    compadd -a choices
}
compdef _kubectl kubectl
"#;
const FISH: &str = r#"# fish completion for kubectl
function __kubectl_complete
    set -l words (commandline -opc) (commandline -ct)
    kubectl __complete -- $words[2..-1] 2>/dev/null
end
complete -c kubectl -f -a '(__kubectl_complete)'
"#;
const POWERSHELL: &str = r#"# powershell completion for kubectl
Register-ArgumentCompleter -Native -CommandName kubectl -ScriptBlock {
    param($word, $ast, $position)
    $words = $ast.CommandElements | Select-Object -Skip 1 | ForEach-Object { "$_" }
    if ($word -eq '') { $words += '""' }
    kubectl __complete -- @words 2>$null | ForEach-Object { [System.Management.Automation.CompletionResult]::new($_) }
}
"#;

async fn run(cli: &Cli) -> Result<()> {
    let script = match cli.args.positional.as_slice() {
        [] => return Err(cli.args.usage_error("Shell not specified.")),
        [shell] => match shell.as_str() {
            "bash" => BASH,
            "zsh" => ZSH,
            "fish" => FISH,
            "powershell" => POWERSHELL,
            other => return Err(cli.args.usage_error(format!("Unsupported shell type {other:?}."))),
        },
        _ => return Err(cli.args.usage_error("Too many arguments. Expected only the shell type.")),
    };
    cli.print(script)
}

async fn complete(cli: &Cli) -> Result<()> {
    let Some((current, before)) = cli.args.positional.split_last() else { return Ok(()) };
    for word in suggest(cli, before, current).await {
        cli.line(word)?;
    }
    Ok(())
}

/// Commands, flags, resource types or names, whichever may follow `before`.
async fn suggest(cli: &Cli, before: &[String], current: &str) -> Vec<String> {
    let mut children = super::ROOT;
    let mut command: Option<&'static Command> = None;
    let mut words: Vec<&String> = Vec::new();
    for word in before {
        match children.iter().find(|child| child.name == word || child.aliases.contains(&word.as_str())) {
            Some(child) => {
                command = Some(child);
                children = child.children;
            }
            None if !word.starts_with('-') => words.push(word),
            None => {}
        }
    }
    let mut found: Vec<String> = if current.starts_with('-') {
        let own = command.into_iter().flat_map(Command::own_flags);
        own.chain(GLOBAL_FLAGS).map(|flag| format!("--{}", flag.name)).collect()
    } else if !children.is_empty() && words.is_empty() && command.is_none_or(|command| command.run.is_none())
    {
        children.iter().map(|child| child.name.to_owned()).collect()
    } else {
        resources_or_names(cli, command, &words).await.unwrap_or_default()
    };
    found.retain(|word| word.starts_with(current));
    found.sort();
    found
}

async fn resources_or_names(cli: &Cli, command: Option<&Command>, words: &[&String]) -> Result<Vec<String>> {
    let takes_pods =
        command.is_some_and(|command| matches!(command.name, "logs" | "exec" | "attach" | "port-forward"));
    let takes_nodes = command.is_some_and(|command| matches!(command.name, "cordon" | "uncordon" | "drain"));
    let kind = match words {
        _ if takes_pods => "pods",
        _ if takes_nodes => "nodes",
        [] => {
            let discovery = cli.discovery().await?;
            return Ok(discovery
                .preferred()
                .into_iter()
                .filter(|resource| resource.supports("get"))
                .map(|resource| resource.qualified())
                .collect());
        }
        [kind, ..] => kind.as_str(),
    };
    let resource = cli.resource(kind).await?;
    let list = cli
        .client()?
        .json(Request::get(&format!("{}?limit=500", resource.path(&cli.namespace()?.name))))
        .await?;
    if list.kind().is_empty() {
        return Err(Error::message("no list"));
    }
    Ok(list.list("items").iter().map(|item| item.name().to_owned()).collect())
}
