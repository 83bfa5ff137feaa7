"""fresco-demo: a tiny GLM-Image that draws what a caption of its grammar says. See README.md."""
