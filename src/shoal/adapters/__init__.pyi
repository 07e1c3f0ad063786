from shoal.adapters.arrays.generated_groups import GeneratedGroups as GeneratedGroups
