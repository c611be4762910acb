"""What the notebooks share: charts and sliders, exercises, gradients by enumeration."""
