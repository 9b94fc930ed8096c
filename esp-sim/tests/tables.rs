//! The tables in `esp-sim/tables` are what the code does now.

use std::path::Path;

fn compare(name: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tables").join(name);
    if std::env::var_os("ESP_BLESS").is_some() {
        std::fs::write(&path, now).expect("the table can be written");
        return;
    }
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    if before == now {
        return;
    }
    let changed =
        now.lines().zip(before.lines().chain(std::iter::repeat(""))).filter(|(new, old)| new != old);
    let changed: String = changed.take(20).map(|(new, old)| format!("- {old}\n+ {new}\n")).collect();
    panic!(
        "{} is not what the code does now:\n{changed}\nIf the change is meant, refresh with\n    \
         ESP_BLESS=1 cargo test -p esp-sim --test tables\nand let the difference be reviewed.",
        path.display()
    );
}

#[test]
fn goodput_by_loss_and_window() {
    compare("goodput.txt", &esp_sim::tables::goodput());
}

#[test]
fn fairness_and_incast() {
    compare("fairness.txt", &esp_sim::tables::fairness());
}
