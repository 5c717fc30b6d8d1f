//! Every plugin of the table, case by case: which nodes it lets pass and in which words it refuses the others, and what
//! it scores them. How plugins work together is the matter of `reference.rs`.

mod devices;
mod nodes;
mod pods;
mod preemption;
mod volumes;
mod world;

use ferry_scheduler::plugins::PLUGINS;

/// A plugin without cases would be one that no one has looked at.
#[test]
fn every_plugin_that_filters_or_scores_has_its_cases() {
    let cases = [
        include_str!("devices.rs"),
        include_str!("nodes.rs"),
        include_str!("pods.rs"),
        include_str!("volumes.rs"),
    ];
    let cases = cases.concat();
    for plugin in PLUGINS.iter().filter(|plugin| plugin.filter.is_some() || plugin.score.is_some()) {
        assert!(cases.contains(&format!("\"{}\"", plugin.name)), "{} has none", plugin.name);
    }
}
