-- time_zone: the zone in which a day begins: every date_key of the warehouse is a day of it.
-- Grain: one row. Units: none. Reads from: dim_setting. Set by `seqscale load --time-zone`.
-- time_zone []: IANA name of the zone; UTC if never set
SELECT coalesce(max(value) FILTER (WHERE setting = 'time_zone'), 'UTC') AS time_zone
FROM dim_setting;
