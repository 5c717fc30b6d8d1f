//! CronJob: a schedule and the jobs it makes.

use ferry_api::Object;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::workload;
use crate::columns::Column;
use crate::strategy::{Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, CronJobRules> = Typed::new(CronJobRules);

pub struct CronJobRules;

impl Rules<IgnoredAny> for CronJobRules {
    fn default(&self, object: &mut Object) {
        let template = object.section_mut("spec").get_mut("jobTemplate");
        if let Some(Value::Object(job)) = template.and_then(|template| template.get_mut("spec")) {
            workload::default_template_of(job);
        }
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::CRON_JOB
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, ..StrategyOptions::default() }
    }
}

/// Whether five fields, or a word that stands for them, name a schedule.
pub fn parse_schedule(schedule: &str) -> Result<(), String> {
    // A time zone may stand before it; that it must not is another rule's matter.
    let zoned = schedule.starts_with("TZ=") || schedule.starts_with("CRON_TZ=");
    let schedule = match schedule.split_once(' ') {
        Some((_, rest)) if zoned => rest.trim_start(),
        _ => schedule,
    };
    if let Some(word) = schedule.strip_prefix('@') {
        let known = ["yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly"];
        let interval = word.strip_prefix("every ").is_some_and(|every| !every.trim().is_empty());
        return if known.contains(&word) || interval {
            Ok(())
        } else {
            Err(format!("unrecognized descriptor: {schedule}"))
        };
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    const RANGES: [(u32, u32); 5] = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
    const MONTHS: &[&str] =
        &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    for (index, field) in fields.iter().enumerate() {
        let (low, high) = RANGES[index];
        let names: &[&str] = match index {
            3 => MONTHS,
            4 => DAYS,
            _ => &[],
        };
        for part in field.split(',') {
            check_part(part, low, high, names)?;
        }
    }
    Ok(())
}

/// `*`, `?`, a number or name, a range of them, each with a step.
fn check_part(part: &str, low: u32, high: u32, names: &[&str]) -> Result<(), String> {
    let number = |text: &str| {
        let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
        match named {
            Some(position) => Ok(position as u32 + low),
            None => text.parse::<u32>().map_err(|_| format!("failed to parse int from {text}")),
        }
    };
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    let (from, to) = match range {
        "*" | "?" => (low, high),
        _ => match range.split_once('-') {
            Some((from, to)) => (number(from)?, number(to)?),
            None => (number(range)?, number(range)?),
        },
    };
    if from < low {
        return Err(format!("beginning of range ({from}) below minimum ({low}): {part}"));
    }
    if to > high {
        return Err(format!("end of range ({to}) above maximum ({high}): {part}"));
    }
    if from > to {
        return Err(format!("beginning of range ({from}) beyond end of range ({to}): {part}"));
    }
    match step.map(number) {
        Some(Err(why)) => Err(why),
        Some(Ok(0)) => Err(format!("step of range should be a positive number: {part}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_understood_or_refused() {
        for good in ["* * * * *", "*/5 0-6 1,15 jan-mar mon", "@hourly", "@every 1h", "0 0 ? * SUN/2"] {
            assert_eq!(parse_schedule(good), Ok(()), "{good}");
        }
        for bad in
            ["", "* * * *", "60 * * * *", "* * 0 * *", "5-1 * * * *", "*/0 * * * *", "@never", "a * * * *"]
        {
            assert!(parse_schedule(bad).is_err(), "{bad}");
        }
    }
}
