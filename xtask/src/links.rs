//! Documents that point at source which has moved are worse than none: every relative link must lead
//! somewhere.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub fn check() -> Result<()> {
    println!("==> links in the documents");
    let mut documents: Vec<PathBuf> = markdown(Path::new("."))?;
    documents.extend(markdown(Path::new("docs"))?);
    let mut broken = Vec::new();
    for document in documents {
        let text =
            std::fs::read_to_string(&document).with_context(|| format!("read {}", document.display()))?;
        let folder = document.parent().unwrap_or(Path::new("."));
        for target in targets(&text).into_iter().filter(|target| !folder.join(target).exists()) {
            broken.push(format!("{}: {target}", document.display()));
        }
    }
    if !broken.is_empty() {
        bail!("links that lead nowhere:\n{}", broken.join("\n"));
    }
    Ok(())
}

fn markdown(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect())
}

/// The files a document links to, without anchors; addresses of other hosts are not ours to check.
fn targets(text: &str) -> Vec<&str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .map(|target| target.split('#').next().unwrap_or(target))
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_are_found() {
        let text = "[a](docs/a.md#x) and [b](https://example.com) and [c](#here)[d](src/d.rs)";
        assert_eq!(targets(text), ["docs/a.md", "src/d.rs"]);
    }
}
