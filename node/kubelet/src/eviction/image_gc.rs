//! Removing images nobody uses, when their disk fills up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::signals::Observations;
use crate::context::Context;
use crate::cri;
use crate::images::containerd;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Image {
    id: String,
    size: u64,
    is_used: bool,
    is_pinned: bool,
    first_seen: Instant,
    last_used: Instant,
}

/// Remembers when images were last used: the runtime does not.
#[derive(Debug, Default)]
pub struct ImageCollector {
    seen: BTreeMap<String, (Instant, Instant)>,
    looked_at: Option<Instant>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("asking the runtime: {0}")]
    Runtime(#[from] cri::Error),
    #[error("listing the images that were loaded by hand: {0}")]
    Loaded(#[from] containerd::Error),
}

/// While there is space, which images are used is looked up this often.
const LOOK_PERIOD: Duration = Duration::from_secs(60);

impl ImageCollector {
    /// Looks at what is in use, and frees space when there is too little. Says whether any was freed.
    pub async fn collect(
        &mut self,
        context: &Context,
        observations: &Observations,
        is_disk_short: bool,
        now: Instant,
    ) -> Result<bool, Error> {
        let config = &context.config;
        let disk = observations.get("imagefs.available").or_else(|| observations.get("nodefs.available"));
        let Some(disk) = disk.filter(|disk| disk.capacity > 0) else { return Ok(false) };
        let used_percent = 100 - disk.available * 100 / disk.capacity;
        let is_full = used_percent >= i64::from(config.image_gc_high_threshold_percent);
        let is_due = self.looked_at.is_none_or(|looked| now.duration_since(looked) >= LOOK_PERIOD);
        if !is_full && !is_disk_short && !is_due {
            return Ok(false);
        }
        self.looked_at = Some(now);
        let listed_at = Timestamp::now();
        let known = self.seen.len();
        let images = self.images(context, now).await?;
        if self.seen.len() < known {
            let present: Vec<&str> = images.iter().map(|image| image.id.as_str()).collect();
            context.images.records().prune(&present, listed_at);
        }
        if !is_full && !is_disk_short {
            return Ok(false);
        }
        let target = disk.capacity * (100 - i64::from(config.image_gc_low_threshold_percent)) / 100;
        let wanted = u64::try_from(target - disk.available).unwrap_or(0);
        let chosen = choose(images, wanted, now, config.image_minimum_gc_age);
        let freed = !chosen.is_empty();
        for id in chosen {
            tracing::info!(image = id, "removing an image nobody uses");
            context.runtime.remove_image(cri::ImageSpec { image: id, ..Default::default() }).await?;
        }
        Ok(freed)
    }

    async fn images(&mut self, context: &Context, now: Instant) -> Result<Vec<Image>, Error> {
        let (images, containers) =
            tokio::try_join!(context.runtime.list_images(), context.runtime.list_containers(None))?;
        let loaded = context.images.loaded().await?;
        let used: BTreeSet<&str> = containers
            .iter()
            .flat_map(|container| {
                let spec = container.image.as_ref().map(|image| image.image.as_str());
                [Some(container.image_ref.as_str()), spec].into_iter().flatten()
            })
            .collect();
        let mut known = Vec::new();
        for image in images {
            let names = image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
            let is_used = names.into_iter().any(|name| used.contains(name.as_str()));
            let (first_seen, last_used) = self.seen.entry(image.id.clone()).or_insert((now, now));
            if is_used {
                *last_used = now;
            }
            // the sandbox image is in use by every pod, but by no container
            let is_sandbox = image.repo_tags.iter().any(|tag| tag.contains("/pause:"));
            // no registry need have it: once removed, it does not come back
            let is_loaded = image.repo_tags.iter().any(|tag| loaded.contains(tag));
            known.push(Image {
                id: image.id,
                size: image.size,
                is_used,
                is_pinned: image.pinned || is_sandbox || is_loaded,
                first_seen: *first_seen,
                last_used: *last_used,
            });
        }
        self.seen.retain(|id, _| known.iter().any(|image| &image.id == id));
        Ok(known)
    }
}

/// The images to remove to free some bytes: longest unused first, none that
/// is young.
fn choose(mut images: Vec<Image>, bytes: u64, now: Instant, min_age: Duration) -> Vec<String> {
    images.retain(|image| {
        !image.is_used && !image.is_pinned && now.duration_since(image.first_seen) >= min_age
    });
    images.sort_by_key(|image| (image.last_used, image.first_seen));
    let mut freed = 0;
    let mut chosen = Vec::new();
    for image in images {
        if freed >= bytes {
            break;
        }
        freed += image.size;
        chosen.push(image.id);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_images_go_until_enough_is_freed() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let image = |id: &str, is_used, is_pinned, last_used| Image {
            id: id.into(),
            size: 10,
            is_used,
            is_pinned,
            first_seen: start,
            last_used: at(last_used),
        };
        let images = || {
            vec![
                image("used", true, false, 0),
                image("pinned", false, true, 0),
                image("new", false, false, 500),
                image("old", false, false, 1),
            ]
        };
        let age = Duration::from_secs(120);
        assert_eq!(choose(images(), 10, at(1000), age), ["old"]);
        assert_eq!(choose(images(), 11, at(1000), age), ["old", "new"]);
        assert!(choose(images(), 0, at(1000), age).is_empty());
        assert!(choose(images(), 10, at(100), age).is_empty(), "all are too young");
    }
}
