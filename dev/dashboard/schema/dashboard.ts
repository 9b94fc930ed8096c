// Types that the JSON of our dashboard has to have: those of Grafana, and of the panels and queries
// in use. `check` appends the JSON.
import type { Dashboard, FieldConfigSource, GraphFieldConfig, Panel } from '@grafana/schema';
import type * as stat from
    '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as timeseries from
    '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// JSON has the values of enumerations, not their names.
type Plain<T> = T extends string ? `${T}`
    : T extends (infer Item)[] ? Plain<Item>[]
    : T extends object ? { [Key in keyof T]: Plain<T[Key]> }
    : T;

// A query of the data source Prometheus, whose types are not published.
type Target = {
    refId: string;
    expr: string;
    legendFormat: string;
    datasource: { type: 'prometheus'; uid: string };
};

type PanelOf<Type, Options, Custom> =
    Omit<Panel, 'type' | 'options' | 'fieldConfig' | 'targets'> & {
        type: Type;
        options: Partial<Options>;
        fieldConfig: FieldConfigSource<Partial<Custom>>;
        targets: Target[];
    };

type Ours = Omit<Dashboard, 'panels'> & {
    panels: (
        | PanelOf<'stat', stat.Options, {}>
        | PanelOf<'timeseries', timeseries.Options, GraphFieldConfig>
    )[];
};

