//! The site of docs/, as its script makes it.

use crate::support::prelude::*;

/// All pages except the one for missing pages, which may be shown in any folder.
fn pages(site: &Path) -> Vec<PathBuf> {
    let folders = ["", "internals"].map(|folder| fs::read_dir(site.join(folder)).unwrap());
    let pages = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let is_page = |page: &PathBuf| page.extension().is_some_and(|ending| ending == "html");
    pages.filter(|page| is_page(page) && !page.ends_with("404.html")).collect()
}

#[test]
fn the_site_has_every_page_and_no_link_to_a_page_or_a_picture_that_is_missing() {
    let site = TempDir::new().unwrap();
    let mdbook = tool("mdbook");
    let path = format!("{}:{}", mdbook.parent().unwrap().display(), env!("PATH"));
    let built =
        run(Command::new(root().join("docs/site/build")).arg(site.path()).env("PATH", path));
    assert_eq!(built.0, Some(0), "{}", built.2);
    let html = site.path().join("html");
    for folder in ["", "internals"] {
        let entries = fs::read_dir(root().join("docs").join(folder)).unwrap();
        for entry in entries.map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap().to_str().unwrap();
            let Some(name) = name.strip_suffix(".md").filter(|name| *name != "README") else {
                continue;
            };
            assert!(html.join(folder).join(name).with_extension("html").is_file(), "{name}");
        }
    }
    for page in pages(&html) {
        let text = fs::read_to_string(&page).unwrap();
        let targets = [" href=\"", " src=\""].map(|attribute| text.split(attribute).skip(1));
        for link in targets.into_iter().flatten().map(|rest| rest.split('"').next().unwrap()) {
            let file = link.split(['#', '?']).next().unwrap();
            let is_own = !file.is_empty() && !file.contains(':');
            let target = page.parent().unwrap().join(file);
            assert!(!is_own || target.is_file(), "{}: {link}", page.display());
        }
    }
}
