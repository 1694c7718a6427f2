"""Each family as values: configurations, presets, limits, controls and edit plans. No torch."""
