"""What the notebooks share: charts and sliders, exercises, a tiny model's gradients."""
